"""The pre-ranker: LightGBM lambdarank, grouped by request, graded by the worth of what the viewer did.

A row's grade is the rank of its reward (sum of worth x label) among all rewards that the log's tasks allow, and its
gain is reward - least reward. Swapping two posts then weighs as much as their rewards differ, which is the same unit by
which replay judges a policy: showing a post that gets hidden costs more than missing a click gains.
"""

import itertools
from typing import Any

import numpy as np

from contracts.errors import BadInput
from contracts.features import FEATURE_VERSION, INPUT_NAMES, PRERANK_NAMES
from contracts.files import canonical_json
from contracts.progress import stage
from contracts.samples import SAMPLES
from contracts.tasks import TASK_NAMES, TASKS
from contracts.workspace import Workspace
from ranking.compiled_trees import load_compiled
from ranking.data import Samples, check_samples, load_samples, tasks_with_labels
from ranking.metrics import ndcg, order_skill
from ranking.settings import PrerankSettings

_COLUMNS_P = np.array([INPUT_NAMES.index(name) for name in PRERANK_NAMES])
_TOP = 8


def possible_rewards(tasks_T: np.ndarray) -> np.ndarray:
    """Every reward that a row can have when the tasks of the mask (T,) are labelled, ascending."""
    worths = [task.worth for task, labelled in zip(TASKS, tasks_T) if labelled]
    sums = {sum(subset) for size in range(len(worths) + 1) for subset in itertools.combinations(worths, size)}
    return np.array(sorted(sums), dtype=np.float64)


def train_prerank(workspace: Workspace, settings: PrerankSettings | None = None) -> dict[str, Any]:
    """Trains the pre-ranker on the workspace's samples and puts it in force as artifact "prerank"; returns its metrics.

    Files: `model.txt` (LightGBM text, the source of truth), `model.json`. `BadInput` when the samples cannot be used.
    """
    settings = settings or PrerankSettings()
    dataset = check_samples(workspace)
    with stage("load samples"):
        train, validation, test = (load_samples(workspace, name) for name in ("train", "validation", "test"))
    tasks_T = tasks_with_labels(train) & np.isin(TASK_NAMES, dataset.tasks)
    if not tasks_T.any():
        raise BadInput(
            f"none of the tasks {', '.join(dataset.tasks)} has both labels among {len(train)} viewed train samples"
        )
    rewards = possible_rewards(tasks_T)
    with stage(f"train the pre-ranker on {len(train):,} viewed impressions in {len(train.group_sizes_G):,} requests"):
        booster = fit_trees(train, validation, rewards, settings)
    metrics: dict[str, Any] = {
        "trees": booster.num_trees(), "train_rows": len(train), "train_requests": len(train.group_sizes_G),
        "top": _TOP, "gains_of_rewards": dict(zip(map(str, rewards.tolist()), (rewards - rewards[0]).tolist())),
    }  # fmt: skip
    for samples in (validation, test):
        metrics[samples.split] = _evaluate(
            samples, booster.predict(samples.inputs_NF[:, _COLUMNS_P], num_threads=settings.threads), rewards
        )
    gains_P = booster.feature_importance("gain")
    top = np.argsort(-gains_P, kind="stable")[:10]
    metrics["largest_gains"] = {PRERANK_NAMES[i]: round(float(gains_P[i] / max(gains_P.sum(), 1e-300)), 4) for i in top}
    parents = {"samples": workspace.samples.manifest(SAMPLES).content_hash}
    store = workspace.artifacts
    with stage("write and compile the pre-ranker"):
        with store.create("prerank", parents=parents, settings=settings.model_dump(mode="json"),
                          feature_version=FEATURE_VERSION) as artifact:  # fmt: skip
            (artifact.path / "model.txt").write_text(booster.model_to_string())
            description = {
                "feature_names": PRERANK_NAMES, "tasks_with_labels": [t for t, has in zip(TASK_NAMES, tasks_T) if has],
            }  # fmt: skip
            (artifact.path / "model.json").write_bytes(canonical_json(description))
            artifact.metrics = metrics
        load_compiled(artifact.file("model.txt"))
    return {"artifact": "prerank", "version": artifact.version, **metrics}


def fit_trees(train: Samples, validation: Samples, rewards: np.ndarray, settings: PrerankSettings) -> Any:
    """The LightGBM booster cut at its best round by validation NDCG; `BadInput` when no split was found."""
    import lightgbm

    # A small log has no leaves of that size: there a leaf may be as small as a fortieth of the rows.
    leaf_rows = min(settings.rows_per_leaf, max(10, len(train) // 40))
    parameters = {
        "objective": "lambdarank", "metric": "ndcg", "eval_at": [_TOP], "label_gain": (rewards - rewards[0]).tolist(),
        "lambdarank_truncation_level": 2 * _TOP, "lambdarank_norm": False,
        "num_leaves": settings.leaves, "learning_rate": settings.learning_rate, "min_data_in_leaf": leaf_rows,
        "feature_fraction": settings.feature_share, "bagging_fraction": settings.row_share, "bagging_freq": 1,
        "lambda_l2": settings.l2, "deterministic": True, "force_row_wise": True, "num_threads": settings.threads,
        "seed": settings.seed, "verbosity": -1,
    }  # fmt: skip
    learn, judge = (_dataset(samples, rewards) for samples in (train, validation))
    booster = lightgbm.train(
        parameters, learn, settings.trees, valid_sets=[judge],
        callbacks=[lightgbm.early_stopping(settings.patience, verbose=False)],
    )  # fmt: skip
    booster = lightgbm.Booster(model_str=booster.model_to_string(num_iteration=booster.best_iteration))
    if not booster.feature_importance("split").any():
        raise BadInput(
            f"the pre-ranker found nothing to split on in {len(train)} train samples; a longer log is needed"
        )
    return booster


def _dataset(samples: Samples, rewards: np.ndarray) -> Any:
    import lightgbm

    grades_N = np.searchsorted(rewards, samples.rewards_N - 1e-9)
    return lightgbm.Dataset(samples.inputs_NF[:, _COLUMNS_P], grades_N, group=samples.group_sizes_G,
                            weight=None if (samples.weights_N == 1).all() else samples.weights_N,
                            feature_name=list(PRERANK_NAMES), free_raw_data=True)  # fmt: skip


def _evaluate(samples: Samples, scores_N: np.ndarray, rewards: np.ndarray) -> dict[str, float]:
    """Order figures of the model and, beside them, of the newest post first."""
    gains_N = samples.rewards_N - rewards[0]
    age_N = samples.inputs_NF[:, INPUT_NAMES.index("post_age_hours")]
    ids = (samples.request_ids_N, samples.post_ids_N)
    return {
        "rows": len(samples), f"ndcg_{_TOP}": ndcg(*ids, gains_N, scores_N, _TOP),
        f"ndcg_{_TOP}_newest_first": ndcg(*ids, gains_N, -age_N, _TOP),
        f"order_skill_{_TOP}": order_skill(*ids, gains_N, scores_N, _TOP),
        f"order_skill_{_TOP}_newest_first": order_skill(*ids, gains_N, -age_N, _TOP),
    }  # fmt: skip
