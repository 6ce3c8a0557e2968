"""Trained models beat what is simpler, are calibrated, equal what serves, and are the same on any number of ranks."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from contracts.errors import BadInput
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from distributed import ParallelLayout, launch
from distributed.planner.diagnosis import diagnose, read_step_log
from ranking.data import load_samples, tasks_with_labels
from ranking.fit import build, fit
from ranking.inputs import transformed
from ranking.layouts import TrainingLayout
from ranking.prerank import possible_rewards, train_prerank
from ranking.scorers import RankerScorer
from ranking.settings import RankerSettings
from ranking.train import train_ranker
from ranking.transform import InputTransform
from tests.ranking.conftest import FEW_TREES, SMALL
from tests.ranking.synthetic import samples_table, workspace_with


def test_the_ranker_finds_products_that_a_linear_model_cannot(ranker: dict):
    for task, metrics in ranker["test"].items():
        assert metrics["auc"] > metrics["auc_logistic_regression"], task
    assert ranker["training"]["skipped_steps"] == 0 and ranker["warnings"] == []


def test_mean_probabilities_are_the_label_rates_of_validation(ranker: dict):
    for metrics in ranker["validation"].values():
        assert metrics["mean_probability"] == pytest.approx(metrics["rate"], abs=1e-6)


def test_the_artifact_keeps_the_best_epoch(ranker: dict):
    history = [epoch["validation"] for epoch in ranker["training"]["history"]]
    assert ranker["training"]["best_epoch"] == int(np.argmin(history)) + 1


def test_what_is_served_is_what_was_calibrated(workspace: Workspace, ranker: dict):
    assert ranker["export_difference"] < 1e-5
    samples = load_samples(workspace, "validation")
    probabilities_NT = RankerScorer.load(workspace.artifacts.load("ranker")).probabilities(samples.inputs_NF)
    for column, task in enumerate(TASK_NAMES):
        assert probabilities_NT[:, column].mean() == pytest.approx(samples.labels_NT[:, column].mean(), abs=1e-5), task


def test_the_same_samples_give_the_same_artifacts(workspace: Workspace, ranker: dict, prerank: dict, tmp_path: Path):
    log = tmp_path / "steps.jsonl"
    assert train_ranker(workspace, SMALL, step_log=log)["version"] == ranker["version"]
    assert diagnose(read_step_log(log)).steps > 1
    assert train_prerank(workspace, FEW_TREES)["version"] == prerank["version"]


def test_two_ranks_train_the_model_of_one_process(workspace: Workspace):
    settings = RankerSettings(batch_size=333, epochs=2, expert_width=8, tower_width=4, category_rows=5)
    train, validation = (load_samples(workspace, name) for name in ("train", "validation"))
    transform = InputTransform.fit(train.inputs_NF, settings.category_codes, settings.category_rows)
    data = [
        transformed(samples, transform, tasks_with_labels(train), settings.exposure_clip)
        for samples in (train, validation)
    ]
    ((_, one),) = launch(fit, (*data, transform.slots, settings), 1)
    results = launch(fit, (*data, transform.slots, settings), 2)
    results += launch(fit, (*data, transform.slots, settings, TrainingLayout(ParallelLayout(dp_shard=2))), 2)
    assert len(data[0].weights_N) % 333 % 2 == 1, "the last batch should be uneven"
    assert [index for index, _ in results] == [0, 1, 0, 1]
    for _, many in results:
        assert max((one.state[name] - many.state[name]).abs().max().item() for name in one.state) < 1e-6
        for alone, together in zip(one.history, many.history):
            assert alone == pytest.approx(together, abs=1e-6)
    fresh = build(transform.slots, data[0], settings).state_dict()
    assert not torch.equal(fresh["gates.weight"], one.state["gates.weight"])


def test_a_log_that_is_overfitted_at_once_is_tried_again_at_a_lower_rate(folder: Path, rng: np.random.Generator):
    workspace = workspace_with(folder, samples_table(rng, 1500, ("share",)), ("share",))
    wild = SMALL.model_copy(update={"learning_rate": 0.3, "epochs": 12})
    once, again = (train_ranker(workspace, wild.model_copy(update={"tries": tries})) for tries in (1, 3))
    assert once["training"]["best_epoch"] <= 2, "the first rate should overfit at once"
    assert again["training"]["learning_rate"] < 0.3
    assert again["training"]["best_validation"] < once["training"]["best_validation"]


def test_a_log_with_shares_alone_trains_and_other_tasks_are_zero(folder: Path, rng: np.random.Generator):
    workspace = workspace_with(folder, samples_table(rng, 4000, ("share",)), ("share",))
    report = train_ranker(workspace, SMALL)
    assert list(report["test"]) == ["share"] and np.isfinite(report["training"]["best_validation"])
    scorer = RankerScorer.load(workspace.artifacts.load("ranker"))
    probabilities_NT = scorer.probabilities(load_samples(workspace, "test").inputs_NF)
    assert scorer.tasks == ("share",)
    assert (probabilities_NT[:, [0, 1, 2, 4]] == 0).all() and (probabilities_NT[:, 3] > 0).all()
    assert list(train_prerank(workspace, FEW_TREES)["gains_of_rewards"]) == ["0.0", "4.0"]


def test_the_pre_ranker_orders_better_than_newest_first(prerank: dict):
    assert prerank["test"]["ndcg_8"] > prerank["test"]["ndcg_8_newest_first"]
    assert prerank["test"]["order_skill_8"] > prerank["test"]["order_skill_8_newest_first"] + 0.05


def test_grades_follow_the_worth_of_what_was_done():
    rewards = possible_rewards(np.ones(5, bool))
    assert rewards[0] == -8 and rewards[-1] == 11 and (np.diff(rewards) > 0).all()


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ("dp_replicate=3", "has 3 ranks, but 2 were started"),
        ("cp=2", "cp=2: the mmoe model has no sequence to cut; use --model sequence"),
        ("pp=2", "pp=2: the mmoe model has no layers to cut; use --model sequence"),
        ("two", "AXIS=RANKS"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_before_any_work(workspace: Workspace, layout: str, sentence: str):
    before = workspace.artifacts.versions("ranker")
    with pytest.raises(BadInput, match=sentence):
        train_ranker(workspace, SMALL, nproc=2, layout=layout)
    assert workspace.artifacts.versions("ranker") == before


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/proc/nosuch/steps.jsonl", "No such file or directory"), ("/dev/full", "No space left on device")],
)
@pytest.mark.parametrize("nproc", [1, 2])
def test_a_step_log_that_cannot_be_written_is_bad_input_on_any_number_of_ranks(
    workspace: Workspace, path: str, reason: str, nproc: int
):
    if not Path(path).parent.parent.exists() or (path == "/dev/full" and not Path(path).exists()):
        pytest.skip(f"this machine has no {path}")
    before = workspace.artifacts.versions("ranker")
    with pytest.raises(BadInput, match=f"^the ranker was not trained: .*{path}: {reason}$"):
        train_ranker(workspace, SMALL.model_copy(update={"epochs": 1}), nproc=nproc, step_log=Path(path))
    assert workspace.artifacts.versions("ranker") == before


def test_more_micro_batches_than_rows_are_refused_before_any_work(workspace: Workspace):
    with pytest.raises(BadInput, match="micro_batches=1000000, but 1 data rank.* 256: there can be at most 256"):
        train_ranker(workspace, SMALL, layout=TrainingLayout(micro_batches=1_000_000))


def test_labels_that_are_all_zero_are_refused_with_nothing_written(folder: Path, small_table: pa.Table):
    for task in TASK_NAMES:
        at = small_table.column_names.index(f"label_{task}")
        small_table = small_table.set_column(at, f"label_{task}", pa.array(np.zeros(small_table.num_rows, np.int8)))
    workspace = workspace_with(folder, small_table)
    for step in (train_ranker, train_prerank):
        with pytest.raises(BadInput, match="both labels among"):
            step(workspace)
    assert not workspace.artifacts.root.exists()
