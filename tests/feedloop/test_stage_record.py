"""A stage is reused only over the very outputs that it left."""

import numpy as np
import pyarrow as pa
import pytest

from contracts.errors import BadInput
from contracts.lake import check_made_of
from contracts.tables import TOPICS
from contracts.workspace import Workspace
from feedloop.log import bring_log
from feedloop.stage_record import StageRecord


def topics(*names: str) -> pa.Table:
    return pa.table({"topic": np.arange(len(names), dtype=np.int32), "name": list(names), "known_at": [1] * len(names)})


def write(workspace: Workspace, *names: str) -> dict:
    return {"hash": workspace.lake.write(TOPICS, topics(*names)).content_hash}


def run(workspace: Workspace, *names: str) -> StageRecord:
    record = StageRecord(workspace)

    def outputs() -> dict[str, str]:
        return {"topics": workspace.lake.manifest(TOPICS).content_hash, "files": str(workspace.lake.files(TOPICS))}

    record.run("log", lambda: write(workspace, *names), settings={"names": names}, rooms=(), outputs=outputs)
    record.run("next", lambda: {"made of": record.made["log"]}, settings={}, rooms=(), outputs=dict, after=("log",))
    return record


def test_nothing_runs_twice_and_what_changed_runs_with_all_that_follows(tmp_path):
    workspace = Workspace(tmp_path)
    assert run(workspace, "a").reused == []
    assert run(workspace, "a").reused == ["log", "next"]
    assert run(workspace, "b").reused == []


def test_a_log_that_another_command_replaced_is_not_taken_for_the_stages_own(tmp_path):
    workspace = Workspace(tmp_path)
    run(workspace, "a")
    write(workspace, "of another seed")
    record = run(workspace, "a")
    assert record.reused == ["next"] and workspace.lake.read(TOPICS)["name"].to_pylist() == ["a"]


@pytest.mark.parametrize("content", [b"[]", b"{}", b"{\xff", b"", b'{"fingerprint": 1}'])
def test_a_damaged_record_is_no_record(tmp_path, content):
    workspace = Workspace(tmp_path)
    run(workspace, "a")
    (tmp_path / "stages" / "log.json").write_bytes(content)
    assert run(workspace, "a").reused == ["next"]


def test_a_damaged_table_is_named_and_made_again(tmp_path):
    workspace = Workspace(tmp_path)
    run(workspace, "a")
    (file,) = (tmp_path / "lake" / "topics").glob("dt=*/*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(BadInput, match="topics is damaged"):
        workspace.lake.read(TOPICS)
    assert run(workspace, "a").reused == ["next"]
    assert workspace.lake.read(TOPICS)["name"].to_pylist() == ["a"]
    file.unlink()
    with pytest.raises(BadInput, match="is gone"):
        workspace.lake.read(TOPICS)


def test_what_was_made_of_an_earlier_log_is_refused(tmp_path):
    workspace = Workspace(tmp_path)
    write(workspace, "a")
    parents = {"topics": workspace.lake.manifest(TOPICS).content_hash}
    made = workspace.features.write(TOPICS, topics("made of a"), parents=parents)
    check_made_of(made, workspace.lake, [TOPICS], "features")
    write(workspace, "b")
    with pytest.raises(BadInput, match="before table topics changed: run `feedloop features`"):
        check_made_of(made, workspace.lake, [TOPICS], "features")


def test_a_log_that_fails_to_come_leaves_the_one_that_was_there(tmp_path):
    workspace = Workspace(tmp_path)
    bring_log(workspace, lambda staging: write(staging, "a"))

    def fail(staging: Workspace) -> dict:
        write(staging, "half")
        raise BadInput("the disk is full")

    with pytest.raises(BadInput):
        bring_log(workspace, fail)
    assert workspace.lake.read(TOPICS)["name"].to_pylist() == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
