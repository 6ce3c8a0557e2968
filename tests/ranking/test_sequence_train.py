"""The sequence ranker as a whole: trained from a workspace, judged beside its peers, written whole and read back verified."""

import numpy as np
import pyarrow as pa
import pytest

from contracts.errors import BadInput
from contracts.samples import SAMPLES
from contracts.tables import ACTIONS, POSTS
from contracts.workspace import Workspace
from ranking.layouts import TrainingLayout
from ranking.sequence.artifact import KIND, SequenceScores
from ranking.sequence.train import load_sequences, train_sequence_ranker
from ranking.settings import SequenceSettings
from ranking.train import train_ranker
from tests.ranking.conftest import SMALL as SMALL_MMOE
from tests.ranking.synthetic import START, samples_table, workspace_with

SMALL = SequenceSettings(
    history=8, candidates=4, width=16, heads=2, feed_forward=16, expert_width=8, tower_width=4, category_rows=5,
    author_codes=64, author_rows=5,
    epochs=4, batch_size=64, learning_rate=1e-2, dropout=0.0, layers=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A log where whoever's last action was a share comments on everything, which no feature says."""
    rng = np.random.default_rng(11)
    table = samples_table(rng, 4000)
    rows = table.to_pandas()
    actions = {name: [] for name in ACTIONS.schema.names}
    requests = rows.drop_duplicates("request_id")
    moods = dict(zip(requests["request_id"], rng.random(len(requests)) < 0.5))
    for number, (viewer, at, request) in enumerate(
        zip(requests["user_id"], requests["requested_at"], requests["request_id"])
    ):
        when = int(at) - 1 - number % 7
        values = (number, None, viewer, 0, 0, "share" if moods[request] else "click", None, when, when)
        for name, value in zip(ACTIONS.schema.names, values):
            actions[name].append(value)
    comments = rows["request_id"].map(moods) & rows["viewed"] & (rng.random(len(rows)) < 0.9)
    place = table.column_names.index("label_comment")
    table = table.set_column(place, "label_comment", pa.array(comments.astype(np.int8)))
    workspace = workspace_with(tmp_path_factory.mktemp("sequence"), table)
    workspace.lake.write(ACTIONS, pa.table(actions).cast(ACTIONS.schema))
    post = {
        "post_id": 0,
        "author_id": 0,
        "created_at": START,
        "known_at": START,
        "kind": "text",
        "topic": 1,
        "visibility": "public",
    }
    workspace.lake.write(
        POSTS, pa.Table.from_pylist([{name: post.get(name) for name in POSTS.schema.names}], POSTS.schema)
    )
    return workspace


@pytest.fixture(scope="module")
def report(workspace: Workspace) -> dict:
    train_ranker(workspace, SMALL_MMOE.model_copy(update={"epochs": 2}))
    return train_sequence_ranker(workspace, SMALL)


def test_it_reads_from_the_history_what_no_feature_says(report: dict):
    comment = report["test"]["comment"]
    assert comment["auc"] > 0.85
    assert comment["auc_logistic_regression"] < 0.6 and comment["auc_mmoe"] < 0.6


def test_the_report_has_both_peers_on_the_same_rows_for_every_task(report: dict):
    for task, values in report["test"].items():
        assert {"auc", "auc_logistic_regression", "auc_mmoe", "calibration_error"} <= set(values), task
    assert report["training"]["histories"] >= report["training"]["requests"]
    assert sum(report["training"]["tokens_per_expert"]["blocks.0"]) > 0


def test_what_is_read_back_gives_the_probabilities_that_were_judged(workspace: Workspace, report: dict):
    scores = SequenceScores.load(workspace.artifacts.load(KIND))
    loaded = load_sequences(workspace, SMALL)
    assert loaded.vocabulary == scores.vocabulary
    probabilities_NT = scores.probabilities(loaded.windows["test"])
    for column, task in enumerate(report["test"]):
        assert probabilities_NT[:, column].mean() == pytest.approx(report["test"][task]["mean_probability"], abs=1e-12)


def test_the_same_samples_give_the_same_artifact(workspace: Workspace, report: dict):
    assert train_sequence_ranker(workspace, SMALL)["version"] == report["version"]


def test_a_changed_checkpoint_is_refused(workspace: Workspace, report: dict):
    artifact = workspace.artifacts.load(KIND)
    path = artifact.file("checkpoint.pt")
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(BadInput, match=r"file checkpoint\.pt was changed after it was written"):
            SequenceScores.load(artifact)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("settings", "layout", "sentence"),
    [
        (SMALL, "tp=2,dp_shard=2", "has 4 ranks, but 2 were started"),
        (SMALL, "pp=2", "1 layers are fewer than pp=2 stages"),
        (SMALL.model_copy(update={"history": 7}), "cp=2", "11 tokens do not divide into 2 x cp=4 chunks"),
        (SMALL, TrainingLayout(micro_batches=1_000_000), "micro_batches=1000000, but 1 data rank.* 64: .* at most 64"),
        (SMALL.model_copy(update={"width": 18}), "tp=2", "width=18 over 2 heads is no even number of channels a head"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(workspace: Workspace, settings, layout, sentence: str):
    before = workspace.artifacts.versions(KIND)
    with pytest.raises(BadInput, match=sentence):
        train_sequence_ranker(workspace, settings, 2, layout)
    assert workspace.artifacts.versions(KIND) == before


def test_a_long_slate_becomes_several_samples_with_one_history(workspace: Workspace):
    windows = load_sequences(workspace, SMALL.model_copy(update={"candidates": 2})).windows
    for data in windows.values():
        rows = data.rows_SC[data.rows_SC >= 0]
        assert sorted(rows) == list(range(len(data.tasks.weights_N))), "every row is a candidate once"
    train = (
        workspace.samples.read(SAMPLES, ["request_id", "split", "viewed"])
        .to_pandas()
        .query("split == 'train' and viewed")
    )
    sizes = train.groupby("request_id").size()
    assert len(windows["train"]) == int(np.ceil(sizes / 2).sum())
