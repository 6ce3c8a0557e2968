"""A small log's samples with planted signal that no linear model can hold: products of tie, taste and age."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.clock import DAY, HOUR
from contracts.dataset import Dataset
from contracts.features import FEATURE_VERSION, FEATURES
from contracts.samples import SAMPLES
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace

START = 1_700_006_400 * 1_000_000
DAYS = 12
SLATE = 5
INFORMATIVE = ("tie_contacts_14d", "taste_clicks_14d", "post_age_hours")
NOISE = ("author_likes_7d", "viewer_clicks_7d", "back_contacts_14d", "mutual_friends", "post_likes_2d")


def dataset(tasks: tuple[str, ...] = TASK_NAMES) -> Dataset:
    return Dataset(
        source="synthetic", start=START, end=START + DAYS * DAY, warmup_us=0, attribution_us=HOUR, live_us=DAY,
        tasks=tasks, has_propensities=True,
    )  # fmt: skip


def samples_table(rng: np.random.Generator, rows: int, tasks: tuple[str, ...] = TASK_NAMES) -> pa.Table:
    """`rows` impressions in requests of SLATE, a fifth of them not viewed."""
    requests = rows // SLATE
    rows = requests * SLATE
    request_N = np.repeat(np.arange(requests), SLATE)
    user_N = np.repeat(rng.integers(0, max(4, requests // 20), requests), SLATE)
    at_N = np.repeat(np.sort(rng.integers(START, START + DAYS * DAY - HOUR, requests)), SLATE)
    features = {}
    for feature in FEATURES:
        if feature.name == "post_kind":
            features[feature.name] = rng.integers(0, feature.cardinality, rows)
        elif feature.name == "post_topic":
            features[feature.name] = rng.integers(0, 8, rows)
        elif feature.name in INFORMATIVE + NOISE:
            features[feature.name] = np.floor(rng.exponential(3.0, rows))
        else:
            features[feature.name] = np.zeros(rows)
    features = {name: values.astype(np.float64) for name, values in features.items()}
    tie = np.log1p(features["tie_contacts_14d"]) - 1.2
    taste = np.log1p(features["taste_clicks_14d"]) - 1.2
    fresh = 1.2 - np.log1p(features["post_age_hours"])
    fond = np.where(features["post_topic"] % 2 == 0, 1.0, -1.0)
    logits = {
        "click": -1.2 + 1.5 * taste * fond + 0.4 * tie, "like": -1.8 + 1.6 * tie * taste, "comment": -2.3 + 1.6 * tie * fresh,
        "share": -2.3 + 1.6 * fond * fresh, "hide": -2.3 - 1.6 * tie * fresh,
    }  # fmt: skip
    viewed_N = rng.random(rows) < 0.8
    split = dataset().split()
    split_N = np.full(rows, "", object)
    for name in ("train", "validation", "test"):
        start, end = getattr(split, name)
        split_N[(at_N >= start) & (at_N < end)] = name
    columns = {
        "request_id": request_N, "user_id": user_N, "post_id": rng.permutation(rows), "author_id": rng.integers(0, 50, rows),
        "position": np.tile(np.arange(SLATE), requests), "shown_at": at_N, "requested_at": at_N, "viewed": viewed_N,
        "policy": np.full(rows, "uniform"), "propensity": np.full(rows, 0.2), "split": split_N.astype(str),
        "examination": np.ones(rows), "keep_share": np.ones(rows), **features,
    }  # fmt: skip
    for task in TASK_NAMES:
        drawn = (rng.random(rows) < 1 / (1 + np.exp(-logits[task]))) & viewed_N
        columns[f"label_{task}"] = pa.array(drawn.astype(np.int8)) if task in tasks else pa.nulls(rows, pa.int8())
    return pa.table({name: columns[name] for name in SAMPLES.schema.names})


def workspace_with(root: Path, table: pa.Table, tasks: tuple[str, ...] = TASK_NAMES,
                   feature_version: str = FEATURE_VERSION) -> Workspace:  # fmt: skip
    workspace = Workspace(root)
    dataset(tasks).save(workspace.dataset_path)
    workspace.samples.write(SAMPLES, table, parents={"feature_version": feature_version})
    return workspace
