"""Loads samples for training: viewed rows of one time window, ordered by request, as plain arrays.

Legend: N rows, F = len(INPUT_NAMES), T = len(TASK_NAMES), G requests.

An impression that nobody looked at says nothing about the post, so only viewed rows are used. That also takes the
position out: in a position-based examination model the position decides whether a post is looked at, not what happens
once it is.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.features import FEATURE_NAMES, FEATURE_VERSION, assemble
from contracts.lake import check_made_of
from contracts.samples import SAMPLES
from contracts.tables import TABLES
from contracts.tasks import TASK_NAMES, TASKS
from contracts.workspace import Workspace


@dataclass(frozen=True)
class Samples:
    """Viewed impressions of one window, ordered by (request, post). `labels_NT` is NaN where the log has no such task;
    `requested_at_N` (UTC microseconds) is the moment that the inputs are as of."""

    split: str
    request_ids_N: np.ndarray
    user_ids_N: np.ndarray
    post_ids_N: np.ndarray
    author_ids_N: np.ndarray
    requested_at_N: np.ndarray
    inputs_NF: np.ndarray
    labels_NT: np.ndarray
    propensities_N: np.ndarray
    weights_N: np.ndarray
    """How many impressions a row stands for: 1 / keep_share, and a row with an action 1 / examination times as many."""

    def __len__(self) -> int:
        return len(self.request_ids_N)

    @property
    def group_sizes_G(self) -> np.ndarray:
        """Rows per request, in row order; always counted from the request ids of the rows that are here."""
        return group_sizes(self.request_ids_N)

    @property
    def rewards_N(self) -> np.ndarray:
        """Sum over tasks of worth x label, tasks without labels left out."""
        return np.nansum(self.labels_NT * np.array([task.worth for task in TASKS]), axis=1)


def group_sizes(request_ids_N: np.ndarray) -> np.ndarray:
    """Lengths (G,) of the runs of equal request ids; ValueError when a request's rows are not together."""
    starts_G = (
        np.flatnonzero(np.r_[True, request_ids_N[1:] != request_ids_N[:-1]]) if len(request_ids_N) else np.zeros(0, int)
    )
    if len(np.unique(request_ids_N[starts_G])) != len(starts_G):
        raise ValueError("rows of one request are not together")
    return np.diff(np.r_[starts_G, len(request_ids_N)])


def check_samples(workspace: Workspace) -> Dataset:
    """The dataset of samples that can be trained on; `BadInput` where they are of another feature version or the split
    is not the time split of the log."""
    manifest = workspace.samples.manifest(SAMPLES)
    check_made_of(manifest, workspace.lake, TABLES.values(), "samples")
    version = manifest.parents.get("feature_version")
    if version != FEATURE_VERSION:
        raise BadInput(
            f"the samples have feature version {version or 'unknown'}, but this code computes {FEATURE_VERSION}: "
            "build the samples again"
        )
    dataset = workspace.dataset()
    split = dataset.split()
    times = workspace.samples.read(SAMPLES, ["request_id", "shown_at", "split"])
    for name in ("train", "validation", "test"):
        start, end = getattr(split, name)
        rows = times.filter(pc.equal(times["split"], name))
        shown_at_N = rows["shown_at"].to_numpy()
        outside_N = (shown_at_N < start) | (shown_at_N >= end)
        if outside_N.any():
            request_id = rows["request_id"].to_numpy()[outside_N.argmax()]
            raise BadInput(
                f"{outside_N.sum()} of {len(outside_N)} {name} samples lie outside the {name} window of the time split "
                f"(request {request_id} is one): a random split of a log leaks the future; build the samples again"
            )
    return dataset


def load_samples(workspace: Workspace, split: str) -> Samples:
    """The viewed rows of `split`; `BadInput` when there are none, or when a feature is not a finite number."""
    start, end = getattr(workspace.dataset().split(), split)
    names = ["request_id", "user_id", "post_id", "author_id", "requested_at", "viewed", "propensity", "split"]
    names += ["examination", "keep_share"]
    names += [f"label_{task}" for task in TASK_NAMES] + list(FEATURE_NAMES)
    table = workspace.samples.read(SAMPLES, names, start, end)
    table = table.filter(pc.and_(pc.equal(table["split"], split), table["viewed"]))
    if not table.num_rows:
        raise BadInput(f"there are no viewed {split} samples in {workspace.samples.root}")
    # Order by a key that says nothing about the outcome; Lake orders by time and position.
    table = table.sort_by([("request_id", "ascending"), ("post_id", "ascending")])
    columns = {name: table[name].to_numpy() for name in FEATURE_NAMES}
    _refuse_non_finite(table, columns, split)
    labels_NT = np.stack([_floats(table[f"label_{task}"]) for task in TASK_NAMES], axis=1)
    return Samples(
        split=split, request_ids_N=table["request_id"].to_numpy(), user_ids_N=table["user_id"].to_numpy(),
        post_ids_N=table["post_id"].to_numpy(), author_ids_N=table["author_id"].to_numpy(),
        requested_at_N=table["requested_at"].to_numpy(), inputs_NF=assemble(columns), labels_NT=labels_NT,
        propensities_N=_floats(table["propensity"]), weights_N=_weights(table, labels_NT),
    )  # fmt: skip


def _weights(table: pa.Table, labels_NT: np.ndarray) -> np.ndarray:
    """(N,). An action proves that the post was looked at, no action does not: each of the former stands for those that
    would have been there had all been looked at (Joachims et al. 2017)."""
    seen_N = np.where((labels_NT == 1).any(axis=1), _floats(table["examination"]), 1.0)
    with np.errstate(divide="ignore"):
        weights_N = 1.0 / (seen_N * _floats(table["keep_share"]))
    unknown_N = ~(np.isfinite(weights_N) & (weights_N > 0))
    if unknown_N.any():
        raise BadInput(
            f"{unknown_N.sum()} of {len(unknown_N)} samples have no examination or keep_share above 0, as those of an "
            "earlier version have none: run `feedloop samples` again"
        )
    return weights_N


def tasks_with_labels(train: Samples) -> np.ndarray:
    """Mask (T,) of tasks that can be learnt: labelled, with at least one 1 and one 0 among the training rows."""
    ones_T = (train.labels_NT == 1).any(axis=0)
    zeros_T = (train.labels_NT == 0).any(axis=0)
    return ones_T & zeros_T


def exposure_weights(propensities_N: np.ndarray, clip: float | None) -> np.ndarray:
    """Row weights (N,) of mean 1: 1/propensity, at most `clip` times the mean of it; ones when `clip` is None.

    `BadInput` when a weight is asked for and a propensity is absent or outside (0, 1].
    """
    if clip is None:
        return np.ones(len(propensities_N))
    bad_N = ~((propensities_N > 0) & (propensities_N <= 1))
    if bad_N.any():
        raise BadInput(f"{bad_N.sum()} of {len(bad_N)} samples have no propensity in (0, 1]; leave exposure_clip unset")
    inverse_N = 1.0 / propensities_N
    clipped_N = np.minimum(inverse_N, clip * inverse_N.mean())
    return clipped_N / clipped_N.mean()


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _refuse_non_finite(table: pa.Table, columns: dict[str, np.ndarray], split: str) -> None:
    for name, values_N in columns.items():
        bad_N = ~np.isfinite(values_N)
        if bad_N.any():
            row = int(bad_N.argmax())
            raise BadInput(
                f"feature {name} is {values_N[row]} in {bad_N.sum()} {split} samples, the first being request "
                f"{table['request_id'][row]}, post {table['post_id'][row]}"
            )
