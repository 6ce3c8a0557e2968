"""What `feedloop train ranker` can be told of the training: checkpoints it goes on from, schedule, average, narrow type."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from contracts.workspace import Workspace
from distributed import TrainerSettings, TrainResult
from distributed.checkpoint.epochs import EpochCheckpoints
from feedloop.cli import main
from ranking.settings import RankerSettings
from ranking.tries import Beside, best_of_tries
from tests.ranking.synthetic import samples_table, workspace_with

SMALL = {"EPOCHS": 3, "BATCH_SIZE": 256, "EXPERT_WIDTH": 8, "TOWER_WIDTH": 4, "CATEGORY_ROWS": 5, "LEARNING_RATE": 0.01, "TRIES": 2,
         "PATIENCE": 9}  # fmt: skip


def told(workspace: Workspace, *options: str, **changed: Any) -> tuple[int, dict[str, Any]]:
    """(exit code, report) of the verb with small settings."""
    settings = {f"FEEDLOOP_RANKER_{name}": str(value) for name, value in {**SMALL, **changed}.items()}
    asked = ["train", "ranker", "--workspace", str(workspace.root), "--json", *options]
    answer = CliRunner().invoke(main, asked, env=settings)
    return answer.exit_code, json.loads(answer.stdout.splitlines()[-1]) if answer.stdout.strip() else {}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return workspace_with(tmp_path_factory.mktemp("verb"), samples_table(np.random.default_rng(3), 2500))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def plain(workspace: Workspace, folder: Path) -> dict[str, Any]:
    """A training that nothing stopped, with its checkpoints in `folder`."""
    code, report = told(workspace, "--checkpoints", str(folder))
    assert code == 0
    return report


def test_a_training_that_was_stopped_ends_with_the_artifact_of_one_that_was_not(
    workspace: Workspace, plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stopped, saved = tmp_path / "stopped", EpochCheckpoints.save
    epochs: list[int] = []

    def saved_until(last: int | None) -> Any:
        def save(self: EpochCheckpoints, epoch: int, *rest: Any) -> None:
            saved(self, epoch, *rest)
            epochs.append(epoch)
            if epoch == last:
                raise KeyboardInterrupt

        return save

    monkeypatch.setattr(EpochCheckpoints, "save", saved_until(1))
    assert told(workspace, "--checkpoints", str(stopped))[0] != 0
    assert epochs == [0, 1] and (stopped / "try-1" / "epoch-0001").is_dir()
    elsewhere = shutil.copytree(stopped, tmp_path / "elsewhere")
    monkeypatch.setattr(EpochCheckpoints, "save", saved_until(None))
    code, report = told(workspace, "--checkpoints", str(stopped))
    assert code == 0 and report["version"] == plain["version"] and epochs == [0, 1, 2]
    code, report = told(
        workspace, "--checkpoints", str(elsewhere), "--nproc", "2", "--layout", "dp_shard=2", "--zero", "3"
    )
    history, before = (one["training"]["history"] for one in (report, plain))
    assert code == 0
    assert [h["validation"] for h in history] == pytest.approx([h["validation"] for h in before], abs=1e-9)


@pytest.mark.parametrize(
    ("options", "same_training"),
    [
        (("--rate-schedule", "wsd", "--decay-share", "0.5"), False),
        (("--average-decay", "0.9"), True),
        (("--precision", "float32"), False),
        (("--precision", "float32", "--compute", "bfloat16"), False),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_what_is_asked_for_reaches_the_training(
    workspace: Workspace, plain: dict[str, Any], options: tuple[str, ...], same_training: bool
):
    code, report = told(workspace, *options)
    assert code == 0
    first, usual = (one["training"]["history"][0] for one in (report, plain))
    assert (first["train"] == usual["train"]) == same_training and first["validation"] != usual["validation"]
    kept = json.loads((workspace.artifacts.load("ranker").path / "manifest.json").read_text())["settings"]
    for name, value in zip(options[::2], options[1::2]):
        assert str(kept[name[2:].replace("-", "_")]) == value
    # A narrow type rounds; it learns the same.
    assert first["validation"] == pytest.approx(usual["validation"], rel=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate-schedule", "step"), "'step' is not one of 'cosine'"),
        (("--average-decay", "1"), "1.0 is not in the range 0<=x<1"),
        (("--decay-share", "0"), "0.0 is not in the range 0<x<=1"),
        (("--decay-share", "0.3"), "--decay-share 0.3 is of schedule wsd, but the rate schedule is cosine"),
        (("--compute", "float16"), "'float16' is not 'bfloat16'"),
        (("--checkpoints", "/proc/nosuch/kept"), "/proc/nosuch"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_trained(
    workspace: Workspace, options: tuple[str, ...], words: str
):
    before = workspace.artifacts.versions("ranker")
    code, report = told(workspace, *options)
    assert code == 2 and words in report["error"] and "\n" not in report["error"], report
    assert workspace.artifacts.versions("ranker") == before


@pytest.mark.parametrize("changed", [{"SEED": 8}, {"EXPERT_WIDTH": 16}, {"EPOCHS": 5}], ids=str)
def test_the_folder_of_another_training_is_refused_before_any_rank_starts(
    workspace: Workspace, plain: dict[str, Any], folder: Path, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ranking.on_ranks.launch", lambda *_, **__: pytest.fail("ranks were started"))
    code, report = told(workspace, "--checkpoints", str(folder), **changed)
    assert code == 2 and f"with {next(iter(changed)).lower()} = " in report["error"], report


def test_a_finished_training_that_is_started_again_reports_what_all_its_runs_took(
    workspace: Workspace, plain: dict[str, Any], folder: Path, tmp_path: Path
):
    kept = shutil.copytree(folder, tmp_path / "kept")
    file = kept / "try-1" / "epoch-0002" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["facts"]["told"] |= {"run_seconds": 5000.0, "seconds": 0.5}
    file.write_text(json.dumps(manifest))
    code, report = told(workspace, "--checkpoints", str(kept))
    assert code == 0 and report["version"] == plain["version"]
    assert report["training"]["seconds"] > 5000
    assert report["training"]["samples_per_second"] == 2 * 3 * report["training"]["rows"]


def test_the_seconds_of_every_try_count_not_of_the_best_alone():
    spent = iter([5.0, 7.0])

    def attempt(of_trainer: TrainerSettings, checkpoints: Path | None) -> TrainResult:
        return TrainResult({}, of_trainer.learning_rate, 0, of_trainer.learning_rate, earlier_seconds=next(spent))

    assert best_of_tries(attempt, RankerSettings(tries=2), Beside()).earlier_seconds == 12


@pytest.mark.parametrize("options", [(), ("--nproc", "2")], ids=["one rank", "two"])
def test_a_rate_at_which_nothing_is_learnt_is_one_sentence_with_rate_and_precision(
    workspace: Workspace, options: tuple[str, ...]
):
    before = workspace.artifacts.versions("ranker")
    code, report = told(workspace, "--precision", "float32", *options, LEARNING_RATE=1e9, CLIP_NORM=1e9)
    assert code == 2 and "at learning rate 1e+09 and precision float32" in report["error"], report
    assert "\n" not in report["error"] and workspace.artifacts.versions("ranker") == before
