"""What executors write: the same bytes however the work is cut up, the old table when the disk refuses."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.lake import Lake, TableManifest, files_of
from contracts.samples import SAMPLES
from contracts.states import STATES
from contracts.tables import SESSIONS
from pipelines.features import build_states
from pipelines.samples import build_samples
from pipelines.samples.settings import SampleSettings
from pipelines.writing import cuts, numbered, write_frame
from tests.pipelines.small_log import START, random_log, save

pytestmark = pytest.mark.spark
DAYS, PER_DAY = 3, 400


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """Sessions of three days, in no order; people of high ids have more of them."""
    rng = np.random.default_rng(4)
    user_id = np.sqrt(rng.integers(0, 10**8, DAYS * PER_DAY)).astype(np.int64)
    started_at = START + np.arange(len(user_id)) % DAYS * DAY + user_id
    columns = {"user_id": user_id, "started_at": started_at, "ended_at": started_at, "requests": np.ones(len(user_id))}
    return pa.table(columns).cast(SESSIONS.schema)


def write(spark: SparkSession, rows: pa.Table, root: Path, bounds: list[int], parts: int) -> TableManifest:
    frame = spark.createDataFrame(rows.to_pandas()).repartition(parts)
    starts = [START + day * DAY for day in range(1, DAYS)]
    number = numbered(F.col("started_at"), sorted(starts + bounds))
    return write_frame(Lake(root), SESSIONS, frame, number, {"made of": "rows"})


def test_executors_write_the_bytes_that_one_process_would(spark: SparkSession, rows: pa.Table, tmp_path: Path) -> None:
    expected = Lake(tmp_path / "one").write(SESSIONS, rows, parents={"made of": "rows"})
    assert write(spark, rows, tmp_path / "executors", [], 3) == expected


def test_files_and_their_order_hang_on_the_rows_and_not_on_the_parts(
    spark: SparkSession, rows: pa.Table, tmp_path: Path
) -> None:
    bounds = [START + DAY + at for at in (2_000, 7_000, 9_000)]
    written = [write(spark, rows, tmp_path / str(parts), bounds, parts) for parts in (1, 5)]
    assert written[0] == written[1]
    assert [len(files_of(day)) for day in written[0].days.values()] == [1, 4, 1]
    order = [(name, "ascending") for name in SESSIONS.order]
    assert Lake(tmp_path / "5").read(SESSIONS).equals(rows.sort_by(order).combine_chunks())


def test_cuts_give_files_of_about_the_wanted_rows_and_none_for_few(spark: SparkSession, rows: pa.Table) -> None:
    frame = spark.createDataFrame(rows.select(["user_id", "started_at"]).to_pandas())
    count = DAYS * PER_DAY
    assert cuts(frame, "user_id", count, count) == []
    at = cuts(frame, "user_id", count, 300)
    assert at == cuts(frame.repartition(3), "user_id", count, 300), "the cuts hang on the rows alone"
    sizes = np.histogram(rows["user_id"].to_numpy(), [0, *at, 10**5])[0]
    assert len(sizes) == 4 and sizes.min() > 250 and sizes.max() < 350
    assert numbered(F.lit(5), [])._jc.toString() == "0"


def test_states_in_several_files_are_the_same_states(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = random_log(np.random.default_rng(5))
    whole, cut = save(tmp_path / "whole", log), save(tmp_path / "cut", log)
    build_states(whole, spark)
    monkeypatch.setenv("FEEDLOOP_FILE_MB", "0.002")
    build_states(cut, spark)
    for spec in STATES.values():
        assert cut.features.read(spec).equals(whole.features.read(spec))
        assert all("file" in day for day in whole.features.manifest(spec).days.values())
    files = {name: len(cut.features.manifest(spec).files()) for name, spec in STATES.items()}
    assert files["tie"] > 4 and files["viewer"] == 2, "the more keys, the more files; two moments"


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of its own under a workspace's features, or the folder that the test names: of 1 MiB, which is soon full."""
    target = tmp_path / "ws" / getattr(request, "param", "features")
    target.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", target], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    yield target
    subprocess.run(["umount", target], check=True)


def fill(disk: Path) -> Path:
    """The file that takes all the room there is."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(os.urandom(4096)):
            pass
    return filler


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.*")) if path.is_file()}


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_refuses_is_one_sentence_and_the_old_states_stay(
    spark: SparkSession, small_disk: Path, fault: str
) -> None:
    workspace = save(small_disk.parent, random_log(np.random.default_rng(5), users=4, posts=8, requests=60, slate=2))
    build_states(workspace, spark, [START + 6 * DAY])
    before = files_in(small_disk)
    if fault == "full":
        filler = fill(small_disk)
        words = "No space left on device"
    else:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        words = "Read-only file system"
    with pytest.raises(BadInput, match=rf"features/state_.* cannot be written: {words}$") as raised:
        build_states(workspace, spark, [START + 6 * DAY, START + 9 * DAY])
    assert "\n" not in str(raised.value)
    if fault == "full":
        filler.unlink()
    assert files_in(small_disk) == before, "no half table, and nothing left that fills the disk"
    for spec in STATES.values():
        assert (
            workspace.features.read(spec)["as_of"].to_pylist()
            == [START + 6 * DAY] * workspace.features.manifest(spec).rows
        )


@pytest.mark.parametrize("small_disk", ["samples"], indirect=True)
def test_a_full_disk_is_one_sentence_and_the_old_samples_stay(spark: SparkSession, small_disk: Path) -> None:
    workspace = save(small_disk.parent, random_log(np.random.default_rng(5), users=4, posts=8, requests=60, slate=2))
    build_samples(workspace, spark)
    before, rows = files_in(small_disk), workspace.samples.manifest(SAMPLES).rows
    filler = fill(small_disk)
    with pytest.raises(BadInput, match=r"samples/.* cannot be written: No space left on device$") as raised:
        build_samples(workspace, spark, SampleSettings(keep_negatives=0.5))
    assert "\n" not in str(raised.value)
    filler.unlink()
    assert files_in(small_disk) == before, "no half table, and nothing left that fills the disk"
    assert workspace.samples.read(SAMPLES).num_rows == rows
