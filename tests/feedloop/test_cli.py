"""The command line keeps its promises: exit 2 and one sentence for bad input, one JSON object, nothing half-written."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from feedloop.cli import main

VERBS = ("demo", "ingest", "simulate", "features", "samples", "train", "replay", "publish", "update", "rollback",
         "serve", "doctor")  # fmt: skip


def call(*arguments: str, **environment: str):
    return CliRunner().invoke(main, list(arguments), env={"REDIS_URL": "", **environment})


def test_every_verb_explains_itself():
    listed = call("--help").output
    for verb in VERBS:
        assert verb in listed
        helped = call(verb, "--help")
        assert helped.exit_code == 0 and len(helped.output.splitlines()) > 3, verb


def bad_calls(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """What a user can get wrong -> (arguments, words that the sentence has)."""
    return {
        "negative users": (["simulate", "--users", "-3"], "-3"),
        "no users": (["simulate", "--users", "0"], "0"),
        "no days": (["simulate", "--days", "0"], "0"),
        "more days than can be": (["simulate", "--days", "100000000"], "100000000"),
        "a negative seed": (["simulate", "--seed", "-1"], "-1"),
        "publish from an empty workspace": (["publish"], "feedloop simulate"),
        "serve from an empty workspace": (["serve"], "feedloop simulate"),
        "update of an empty workspace": (["update"], "feedloop simulate"),
        "a log too short for windows": (["simulate", "--users", "20", "--days", "2"], "warmup_days"),
        "an unknown source": (["ingest", "netflix", str(tmp_path)], "hetrec-lastfm"),
        "a folder that is not there": (["ingest", "hetrec-lastfm", str(tmp_path / "gone")], "gone"),
        "a folder without the files": (["ingest", "hetrec-lastfm", str(tmp_path)], "artists.dat does not exist"),
        "samples before a log": (["samples"], "feedloop simulate"),
        "features before a log": (["features"], "feedloop simulate"),
        "recall before a log": (["train", "recall"], "feedloop simulate"),
        "pre-rank before samples": (["train", "prerank"], ""),
        "ranker before samples": (["train", "ranker"], ""),
        "replay before a log": (["replay"], ""),
        "a layout that is none": (["train", "ranker", "--layout", "dp_replicate=two"], "two"),
        "a layout of another size": (["train", "ranker", "--nproc", "2", "--layout", "dp_replicate=3"], "3"),
        "a workspace that is a file": (["simulate", "--workspace", str(tmp_path / "a-file")], "a-file"),
        "a dead Redis": (["demo", "--redis-url", "redis://127.0.0.1:1/0"], "127.0.0.1:1"),
        "a Redis URL that is none": (["demo", "--redis-url", "nonsense"], "nonsense"),
    } | {
        "nothing to roll back to": (
            ["rollback", "--workspace", str(tmp_path / "empty")],
            "feedloop simulate",
        )
    }


@pytest.mark.parametrize("name", sorted(bad_calls(Path())))
def test_bad_input_is_one_sentence_exit_2_and_nothing_written(name, tmp_path):
    arguments, words = bad_calls(tmp_path)[name]
    workspace = tmp_path / "workspace"
    (tmp_path / "a-file").touch()
    if "--workspace" not in arguments:
        arguments += ["--workspace", str(workspace)]
    answer = call(*arguments, "--json")
    assert answer.exit_code == 2, answer.output
    sentence = json.loads(answer.stdout)["error"]
    assert words in sentence and "\n" not in sentence and "Traceback" not in answer.stderr, sentence
    written = [
        path for path in workspace.rglob("*") if path.is_file() and path.name != ".lock" and "run" not in path.parts
    ]
    assert not written, written


def test_an_unknown_option_is_exit_2():
    for wrong in (["simulate", "--user", "5"], ["simulate", "--users", "many"], ["nosuch"], ["train", "nothing"]):
        answer = call(*wrong, "--json")
        assert answer.exit_code == 2 and json.loads(answer.stdout)["error"], answer.output


def test_a_second_run_in_one_workspace_is_told_to_wait(tmp_path):
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = call("simulate", "--workspace", str(tmp_path))
    assert answer.exit_code == 2 and "another feedloop run" in answer.stderr


@pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/proc/version").exists(), reason="needs a place nobody can write to"
)
def test_a_place_that_cannot_be_written_is_one_sentence():
    answer = call("simulate", "--workspace", "/proc/feedloop")
    assert answer.exit_code == 2 and "/proc/feedloop" in answer.stderr and "Traceback" not in answer.stderr


def test_simulate_says_one_json_object_and_the_same_bytes_for_the_same_seed(tmp_path):
    answers = [call("simulate", "--users", "60", "--days", "12", "--seed", "5", "--workspace", str(tmp_path / name), "--json")
               for name in ("a", "b")]  # fmt: skip
    assert [answer.exit_code for answer in answers] == [0, 0], answers[0].output
    first, second = (json.loads(answer.stdout) for answer in answers)
    assert first == second and first["counts"]["users"] == 60
