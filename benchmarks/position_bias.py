"""Position bias: the estimated examination curve beside the environment's, and a ranker trained with and without it.

The log is read as one that does not say who looked: a post that nobody examined and one that nobody liked look alike.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import expit
from sklearn.metrics import ndcg_score

from benchmarks.claims import Claim, Result, run
from contracts.features import FEATURE_NAMES
from contracts.progress import stage
from contracts.samples import SAMPLES
from contracts.workspace import Workspace
from pipelines.samples import build_samples
from pipelines.samples.bias import slate_rows
from pipelines.samples.examination import METHODS, estimate_examination
from pipelines.sizing import session_for
from pipelines.spark import stop
from simulator.environment import EnvironmentSettings, Truth, simulate

POSITIONS = 8
TRUTH_K = (1.0 + np.arange(POSITIONS)) ** -0.4
"""The environment's examination by position (docs/environment.md)."""
TREES = {"num_leaves": 15, "learning_rate": 0.1, "min_data_in_leaf": 200, "verbose": -1, "seed": 7,
         "num_threads": 2, "deterministic": True, "force_row_wise": True}  # fmt: skip
ROUNDS = 150


def measure(quick: bool) -> Result:
    """Examination curves and rankers on a log of the behaviour environment."""
    settings = EnvironmentSettings(users=700 if quick else 6500, days=14 if quick else 28, seed=7)
    with tempfile.TemporaryDirectory(prefix="position-bias-") as folder:
        workspace = Workspace(Path(folder))
        simulate(workspace, settings)
        build_samples(workspace, session_for(workspace.lake))
        # Spark's memory and processor time are wanted for what follows.
        stop()
        table = workspace.samples.read(SAMPLES)
        truth = Truth.load(workspace)
    result = Result(sizes={"users": settings.users, "days": settings.days, "impressions": table.num_rows,
                           "curves": {"truth": TRUTH_K.round(5).tolist()}})  # fmt: skip
    curve_K = _curves(table, result)
    _rankers(table, truth, curve_K, result)
    return result


def _curves(table: pa.Table, result: Result) -> np.ndarray:
    """One claim per kind of evidence; returns the weakest one's curve (K,)."""
    rows = slate_rows(table)
    raw_K = np.array([rows.engaged_N[rows.position_N == at].mean() for at in range(POSITIONS)])
    raw_error = float(np.abs(raw_K / raw_K[0] / TRUTH_K - 1).max())
    curve_K = np.ones(POSITIONS)
    for method in METHODS:
        with stage(f"examination by {method}, {table.num_rows:,} impressions"):
            seen = rows if method == "viewed" else replace(rows, viewed_N=np.ones(table.num_rows, bool))
            found = estimate_examination(seen, method)
        assert found is not None
        curve_K = found.curve_K
        result.sizes["curves"][method] = curve_K.round(5).tolist()
        error = float(np.abs(curve_K / TRUTH_K - 1).max())
        result.claims.append(Claim(
            f"examination of {POSITIONS} positions by {method}: largest difference from the truth", 100 * error, "%",
            "the raw rate of actions by position", 100 * raw_error, "at most 5", error <= 0.05,
        ))  # fmt: skip
    return curve_K


def _rankers(table: pa.Table, truth: Truth, curve_K: np.ndarray, result: Result) -> None:
    """NDCG of the test window's slates against the true chance of a click, on the two sides of the correction."""
    train, test = (table.filter(pc.equal(table["split"], name)) for name in ("train", "test"))
    test = test.sort_by([("request_id", "ascending"), ("position", "ascending")])
    whole = np.unique(test["request_id"].to_numpy(), return_counts=True)[1] == POSITIONS
    inputs_NF = _inputs(test)
    alone_N1 = test["post_id"].to_numpy()[:, None]
    relevance_N = truth.action_probabilities(test["user_id"].to_numpy(), alone_N1, test["requested_at"].to_numpy())[
        "click"
    ][:, 0]
    clicks_N = train["label_click"].to_numpy(zero_copy_only=False).astype(float)
    data = _inputs(train)
    figures = {}
    for name, examination_N in (
        ("raw clicks", np.ones(train.num_rows)),
        ("corrected samples", curve_K[np.minimum(train["position"].to_numpy(), POSITIONS - 1)]),
    ):
        with stage(f"a ranker on {train.num_rows:,} rows: {name}"):
            model = lightgbm.train(
                TREES | {"objective": _examined_log_loss(examination_N)},
                lightgbm.Dataset(data, clicks_N, init_score=np.full(len(clicks_N), _START)), ROUNDS,
            )  # fmt: skip
        scores_N = np.asarray(model.predict(inputs_NF))
        starts_G = np.r_[0, np.cumsum(np.unique(test["request_id"].to_numpy(), return_counts=True)[1])[:-1]][whole]
        at_GK = starts_G[:, None] + np.arange(POSITIONS)
        figures[name] = float(ndcg_score(relevance_N[at_GK], scores_N[at_GK], k=POSITIONS))
    better = figures["corrected samples"] > figures["raw clicks"]
    result.claims.append(Claim(
        "ranker on corrected samples: NDCG@8 against the true chance of a click", figures["corrected samples"], "NDCG",
        "on raw clicks", figures["raw clicks"], "above the peer", better,
    ))  # fmt: skip


_START = -2.0


def _examined_log_loss(
    examination_N: np.ndarray,
) -> Callable[[np.ndarray, lightgbm.Dataset], tuple[np.ndarray, np.ndarray]]:
    """Log loss of clicks whose chance is examination x sigmoid(score): gradient and expected curvature by the score."""

    def slopes(score_N: np.ndarray, data: lightgbm.Dataset) -> tuple[np.ndarray, np.ndarray]:
        attraction_N = expit(score_N)
        chance_N = np.minimum(examination_N * attraction_N, 1 - 1e-9)
        by_log_N = (chance_N - data.get_label()) / (1 - chance_N)
        return by_log_N * (1 - attraction_N), chance_N / (1 - chance_N) * (1 - attraction_N) ** 2

    return slopes


def _inputs(table: pa.Table) -> np.ndarray:
    return np.stack([table[name].to_numpy() for name in FEATURE_NAMES], axis=1).astype(np.float32)


if __name__ == "__main__":
    run("position_bias", measure)
