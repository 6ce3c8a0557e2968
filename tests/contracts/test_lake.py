"""The lake's tables: several files of a day, the version before the one in force, and which days changed since."""

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.files import canonical_json
from contracts.lake import Lake, TableManifest, changed_days, check_made_of, files_of, made_of
from contracts.tables import SESSIONS, TOPICS

FIRST = 19_000 * DAY


def sessions(*user_ids: int, day: int = 0) -> pa.Table:
    at = [FIRST + day * DAY + user for user in user_ids]
    return pa.table({"user_id": user_ids, "started_at": at, "ended_at": at, "requests": [1] * len(at)}).cast(
        SESSIONS.schema
    )


def users(lake: Lake) -> list[int]:
    return lake.read(SESSIONS)["user_id"].to_pylist()


def names(lake: Lake) -> set[str]:
    return {path.name for path in (lake.root / SESSIONS.name).glob("dt=*/*")}


def test_a_day_in_several_files_is_read_in_the_tables_order(tmp_path):
    lake = Lake(tmp_path)
    files = [lake.write_file(SESSIONS, rows) for rows in (sessions(2, 1), sessions(9, 4), sessions(3, day=1))]
    assert not lake.exists(SESSIONS), "files alone are no table"
    manifest = lake.put_in_force(SESSIONS, files)
    assert users(lake) == [1, 2, 4, 9, 3] and manifest.rows == 5
    assert [len(files_of(day)) for day in manifest.days.values()] == [2, 1]
    assert users(Lake(tmp_path)) == [1, 2, 4, 9, 3], "a manifest that is read again"
    assert lake.upsert(SESSIONS, sessions(5), ("user_id", "started_at")).rows == 6
    assert users(lake) == [1, 2, 4, 5, 9, 3]


def test_one_file_a_day_is_the_very_table_that_is_written_in_one_piece(tmp_path):
    whole, pieces = Lake(tmp_path / "whole"), Lake(tmp_path / "pieces")
    written = whole.write(SESSIONS, pa.concat_tables([sessions(2, 1), sessions(7, day=1)]))
    files = [pieces.write_file(SESSIONS, rows) for rows in (sessions(1, 2), sessions(7, day=1))]
    assert pieces.put_in_force(SESSIONS, files) == written
    old_form = {"file", "rows", "hash"}
    assert all(set(day) == old_form for day in written.days.values())


def test_other_cuts_of_the_same_rows_are_another_version_with_the_same_rows(tmp_path):
    lake = Lake(tmp_path)
    one = lake.put_in_force(SESSIONS, [lake.write_file(SESSIONS, sessions(1, 2, 3))])
    other = lake.put_in_force(SESSIONS, [lake.write_file(SESSIONS, rows) for rows in (sessions(1), sessions(2, 3))])
    assert one.content_hash != other.content_hash and users(lake) == [1, 2, 3]


def test_who_has_read_a_manifest_can_still_open_its_files_after_the_next_write(tmp_path, monkeypatch):
    lake = Lake(tmp_path)
    lake.write(SESSIONS, sessions(1, 2))
    opened = pads.dataset

    def overtaken(files, **options):
        monkeypatch.setattr("contracts.lake.pads.dataset", opened)
        lake.write(SESSIONS, sessions(3))
        return opened(files, **options)

    monkeypatch.setattr("contracts.lake.pads.dataset", overtaken)
    assert users(lake) == [1, 2], "the version whose manifest was read"
    assert users(lake) == [3]


def test_versions_before_the_last_kept_one_are_collected(tmp_path):
    lake = Lake(tmp_path)
    files = []
    for user in (1, 2, 3):
        lake.write(SESSIONS, sessions(user))
        files += lake.files(SESSIONS)
        lake.write(SESSIONS, sessions(user))  # a step that is run twice pushes no version out
    assert [path.split("/")[-1] in names(lake) for path in files] == [False, True, True]
    kept = Lake(tmp_path, keep=2)
    kept.write(SESSIONS, sessions(4))
    assert len(names(kept)) == 3 and pq.read_table(files[1])["user_id"].to_pylist() == [2]
    Lake(tmp_path, keep=0).write(SESSIONS, sessions(5))
    assert len(names(lake)) == 1


def test_a_writer_killed_between_its_files_and_the_manifest_leaves_the_old_table_and_is_swept(tmp_path):
    lake = Lake(tmp_path)
    lake.write(SESSIONS, sessions(1))
    lake.write_file(SESSIONS, sessions(8))
    for folder in (lake.root / SESSIONS.name, *(lake.root / SESSIONS.name).glob("dt=*")):
        (folder / ".half.77.tmp").write_bytes(b"PAR1")
    assert users(lake) == [1]
    lake.write(SESSIONS, sessions(1, 2))
    assert len(names(lake)) == 2, "the version in force and the one before it"
    assert not list((lake.root / SESSIONS.name).glob(".*")) and users(lake) == [1, 2]


@pytest.mark.parametrize("content", [b"", b"[]", b"[5]", b'[{"name": 1}]', b"\xff", b"{}"])
def test_a_damaged_list_of_earlier_versions_hinders_nobody(tmp_path, content):
    lake = Lake(tmp_path)
    lake.write(SESSIONS, sessions(1))
    (lake.root / SESSIONS.name / "manifest.previous.json").write_bytes(content)
    lake.write(SESSIONS, sessions(2))
    lake.write(SESSIONS, sessions(3))
    assert users(lake) == [3] and len(names(lake)) == 2


def test_a_manifest_from_before_there_were_versions_still_reads(tmp_path):
    lake = Lake(tmp_path)
    entry = lake.write_file(SESSIONS, sessions(1, 2))
    old = {
        "name": "sessions",
        "rows": 2,
        "schema_hash": "s",
        "content_hash": "c",
        "parents": {},
        "days": {"2022-01-08": entry},
    }
    (lake.root / SESSIONS.name / "manifest.json").write_bytes(canonical_json(old))
    assert users(lake) == [1, 2] and lake.manifest(SESSIONS) == TableManifest(**old)


def test_the_days_that_changed_since_a_table_was_made_are_named(tmp_path):
    lake, features = Lake(tmp_path / "lake"), Lake(tmp_path / "features")
    lake.write(SESSIONS, pa.concat_tables([sessions(1, 2, day=day) for day in range(8)]))
    topics = pa.table({"topic": np.arange(1, dtype=np.int32), "name": ["a"], "known_at": [FIRST]})
    made = features.write(TOPICS, topics, parents=made_of(lake, [SESSIONS]))
    check_made_of(made, lake, [SESSIONS, TOPICS], "features")
    lake.upsert(SESSIONS, sessions(7, day=3), ("user_id", "started_at"))
    lake.upsert(SESSIONS, sessions(7, day=9), ("user_id", "started_at"))
    lake.drop_days(SESSIONS, ["2022-01-08"])
    first = np.datetime64("2022-01-08")
    assert changed_days(made, lake, [SESSIONS]) == {"sessions": [str(first + day) for day in (0, 3, 9)]}
    named = r"before table sessions \(2022-01-08, 2022-01-11, 2022-01-17\) changed: run `feedloop features`"
    with pytest.raises(BadInput, match=named):
        check_made_of(made, lake, [SESSIONS, TOPICS], "features")
    lake.write(SESSIONS, sessions(1))
    with pytest.raises(BadInput, match=r"2022-01-10 and 5 more days"):
        check_made_of(made, lake, [SESSIONS], "features")


FILE = {"file": "dt=2022-01-08/a.parquet", "rows": 1, "hash": "h"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"days": None}, {"days": []}, {"days": {"2022-01-08": 5}}, {"days": {"2022-01-08": {}}}, {"days": {"today": FILE}},
        {"days": {"2022-01-08": {"files": None, "rows": 1, "hash": "h"}}}, {"days": {"2022-01-08": {"files": [FILE]}}},
        {"days": {"2022-01-08": {"files": [5], "rows": 1, "hash": "h"}}}, {"days": {"2022-01-08": FILE | {"hash": 5}}},
        {"rows": None}, {"rows": "many"}, {"content_hash": None}, {"parents": []}, {"parents": {"users": 5}}, {"name": 5},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_of_other_types_is_one_sentence_that_names_the_file(tmp_path, wrong):
    lake = Lake(tmp_path)
    path = lake.root / SESSIONS.name / "manifest.json"
    manifest = lake.write(SESSIONS, sessions(1)).__dict__ | wrong
    path.write_bytes(canonical_json(manifest))
    (lake.root / SESSIONS.name / "manifest.previous.json").write_bytes(canonical_json([manifest]))
    for use in (lake.read, lake.manifest, lambda spec: made_of(lake, [spec])):
        with pytest.raises(BadInput, match=rf"^{path} is damaged, it does not describe a TableManifest: [^\n]+$"):
            use(SESSIONS)
    lake.write(SESSIONS, sessions(2))
    assert users(lake) == [2], "written anew"


def test_what_the_lake_did_not_put_there_hinders_no_write(tmp_path):
    lake = Lake(tmp_path)
    lake.write(SESSIONS, sessions(1))
    table = lake.root / SESSIONS.name
    (table / "dt=foo").write_text("mine")
    (table / "dt=2022-01-08" / "copy").mkdir()
    (table / ".old.tmp").mkdir()
    lake.write(SESSIONS, sessions(2))
    lake.write(SESSIONS, sessions(3))
    assert users(lake) == [3] and len(names(lake)) == 3, "two versions, and the folder"
    assert (table / "dt=foo").read_text() == "mine"


@pytest.mark.parametrize("earlier", [False, True])
def test_nothing_is_swept_while_the_manifest_in_force_cannot_be_read(tmp_path, earlier):
    lake = Lake(tmp_path)
    if earlier:
        lake.write(SESSIONS, sessions(7))
    lake.write(SESSIONS, sessions(1, 2))
    path = lake.root / SESSIONS.name / "manifest.json"
    whole, there = path.read_bytes(), names(lake)
    path.write_bytes(whole[:40])
    lake.sweep(SESSIONS)
    assert names(lake) == there
    path.write_bytes(whole)
    assert users(lake) == [1, 2], "mended by hand"
    path.write_bytes(whole[:40])
    lake.write(SESSIONS, sessions(3))
    assert users(lake) == [3] and not names(lake) >= there


def test_a_file_that_is_gone_before_it_is_put_in_force_leaves_the_table_as_it_was(tmp_path):
    lake = Lake(tmp_path)
    lake.write(SESSIONS, sessions(1))
    files = [lake.write_file(SESSIONS, sessions(2)), lake.write_file(SESSIONS, sessions(3, day=1))]
    (lake.root / SESSIONS.name / files[1]["file"]).unlink()
    with pytest.raises(BadInput, match=r"table sessions stays as it was: .*dt=2022-01-09/.* is gone"):
        lake.put_in_force(SESSIONS, files)
    assert users(lake) == [1]
