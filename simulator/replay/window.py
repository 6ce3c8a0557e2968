"""The logged requests of one split window as dense arrays: pools, slates, propensities, labels, rewards.

Shapes: R requests, K slate positions, T tasks (contracts.tasks order), P pool entries of all requests together.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import BadInput
from contracts.hashing import splitmix64
from contracts.samples import SAMPLES
from contracts.splits import TimeSplit
from contracts.tables import IMPRESSIONS, POSTS, REQUESTS
from contracts.tasks import TASK_NAMES, TASKS
from contracts.workspace import Workspace
from simulator.evaluation.logged_data import LoggedData
from simulator.replay.checks import (
    check_births,
    check_clocks,
    check_pools,
    check_propensities,
    check_requests,
    check_slates,
    no_requests,
)

_COLUMNS = ("request_id", "user_id", "post_id", "position", "shown_at", "requested_at", "viewed", "propensity", "split")


@dataclass(frozen=True)
class Window:
    """Requests in time order. `post_RK` is -1 and `shown_RK` false where a slate is shorter than K; `label_RKT` is NaN
    where the log has no such task; `pool` of request r is `pool_P[pool_start_R[r]:pool_start_R[r + 1]]`, created at
    `created_at_P` (UTC us; 0 where the lake has no such post)."""

    name: str
    total_requests: int
    request_R: np.ndarray
    viewer_R: np.ndarray
    requested_at_R: np.ndarray
    pool_start_R: np.ndarray
    pool_P: np.ndarray
    created_at_P: np.ndarray
    post_RK: np.ndarray
    shown_RK: np.ndarray
    viewed_RK: np.ndarray
    propensity_RK: np.ndarray
    label_RKT: np.ndarray

    @property
    def pool_size_R(self) -> np.ndarray:
        """How many posts the logging policy could choose from."""
        return np.diff(self.pool_start_R)

    def pool(self, r: int) -> np.ndarray:
        """Post ids that the logging policy could choose from at request r."""
        return self.pool_P[self.pool_start_R[r] : self.pool_start_R[r + 1]]

    @property
    def reward_RK(self) -> np.ndarray:
        """Reward of each impression: the sum of worth x label over the tasks that the log has."""
        return np.where(np.isnan(self.label_RKT), 0.0, self.label_RKT) @ np.array([task.worth for task in TASKS])

    def pool_rows(self, post_RK: np.ndarray) -> np.ndarray:
        """Index into the P pool entries of each post of each slate (R, K); -1 where the post is not in its pool, or is -1."""
        size_R = self.pool_size_R
        owner_P = np.repeat(np.arange(len(size_R)), size_R)
        order = np.lexsort((self.pool_P, owner_P))
        ids, codes = np.unique(np.concatenate([self.pool_P, post_RK.ravel()]), return_inverse=True)
        key_P = owner_P[order] * len(ids) + codes[: len(self.pool_P)][order]
        wanted = np.repeat(np.arange(len(size_R)), post_RK.shape[1]) * len(ids) + codes[len(self.pool_P) :]
        at = np.minimum(np.searchsorted(key_P, wanted), max(len(key_P) - 1, 0))
        found = (key_P[at] == wanted) & (post_RK.ravel() >= 0)
        return np.where(found, order[at], -1).reshape(post_RK.shape)

    def logged_data(self) -> LoggedData:
        """For the estimators. ValueError where propensities are missing."""
        labels_RKT = np.where(np.isnan(self.label_RKT), 0.0, self.label_RKT)
        return LoggedData(
            viewer_R=self.viewer_R, shown_RK=self.shown_RK, post_RK=self.post_RK, reward_RK=self.reward_RK,
            propensity_RK=np.where(self.shown_RK, self.propensity_RK, 1.0), pool_R=self.pool_size_R,
            task_reward_RK={name: labels_RKT[:, :, t] for t, name in enumerate(TASK_NAMES)},
        )  # fmt: skip


def load_window(
    workspace: Workspace,
    split: TimeSplit,
    name: str,
    *,
    has_propensities: bool,
    limit: int | None,
    pool_entries: int | None = None,
) -> Window:
    """The requests of window `name` ("validation", "test") whose slates are whole and whose label windows are closed.

    With `limit`, the requests of the `limit` smallest hashes of their ids, so that the choice never depends on the rest
    of the log; with `pool_entries` only as many of them as have that many pool entries together, since memory grows
    with those. `BadInput` for an empty window, a request id that comes twice, a slate outside its pool, and, where the
    log claims propensities, a propensity that is missing or outside (0, 1], an impression dated before its request, and a
    post shown before it was created; each names the count and one example.
    """
    start, end = getattr(split, name)
    requests = workspace.lake.read(REQUESTS, ["request_id", "user_id", "requested_at", "candidates"], start, end)
    requests = requests.combine_chunks()
    if requests.num_rows == 0:
        raise BadInput(no_requests(workspace.lake.read(REQUESTS, ["request_id", "requested_at"]), name, start, end))
    check_requests(requests, name)
    samples = _read_samples(workspace, name, start, end + split.window_us)
    impressions = workspace.lake.read(IMPRESSIONS, ["request_id"], start, end + split.window_us)
    shown_R, sampled_R = (_rows_per_request(requests, table) for table in (impressions, samples))
    chosen = np.flatnonzero((sampled_R > 0) & (sampled_R == shown_R))
    if len(chosen) == 0:
        raise BadInput(
            f"the {name} window has {requests.num_rows} requests but none with samples of its whole slate: "
            "run `feedloop samples`"
        )
    total = len(chosen)
    request_ids = requests["request_id"].to_numpy()
    by_hash = chosen[np.argsort(splitmix64(request_ids[chosen]), kind="stable")][:limit]
    if pool_entries is not None:
        entries = np.cumsum(pc.list_value_length(requests["candidates"]).to_numpy()[by_hash])
        by_hash = by_hash[: max(1, int(np.searchsorted(entries, pool_entries, side="right")))]
    chosen = np.sort(by_hash)
    requests = requests.take(pa.array(chosen)).combine_chunks()
    samples = samples.filter(pc.is_in(samples["request_id"], requests["request_id"].combine_chunks()))
    check_clocks(samples, name)
    if has_propensities:
        check_propensities(samples, name)
    window = _dense(name, total, requests, samples, workspace.lake.read(POSTS, ["post_id", "created_at"]))
    check_pools(window.request_R, window.pool_start_R, window.pool_P, window.post_RK, name)
    created_at_RK = window.created_at_P[window.pool_rows(window.post_RK)]
    check_births(window.request_R, window.requested_at_R, window.post_RK, created_at_RK, name)
    return window


def _read_samples(workspace: Workspace, name: str, start: int, end: int) -> pa.Table:
    labels = [f"label_{task}" for task in TASK_NAMES]
    samples = workspace.samples.read(SAMPLES, [*_COLUMNS, *labels], start, end)
    samples = samples.filter(pc.equal(samples["split"], name)).combine_chunks()
    check_slates(samples, name)
    return samples


def _rows_per_request(requests: pa.Table, table: pa.Table) -> np.ndarray:
    """How many rows of `table` each request has, (R,)."""
    ids = requests["request_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    wanted = table["request_id"].to_numpy()
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    known = ids[order][at] == wanted
    return np.bincount(order[at[known]], minlength=len(ids))


def _dense(name: str, total: int, requests: pa.Table, samples: pa.Table, posts: pa.Table) -> Window:
    request_R = requests["request_id"].to_numpy()
    order = np.argsort(request_R, kind="stable")
    row = order[np.searchsorted(request_R[order], samples["request_id"].to_numpy())]
    position = samples["position"].to_numpy()
    shape = (len(request_R), int(position.max()) + 1)
    post_RK = np.full(shape, -1, np.int64)
    post_RK[row, position] = samples["post_id"].to_numpy()
    viewed_RK = np.zeros(shape, bool)
    viewed_RK[row, position] = samples["viewed"].to_numpy(zero_copy_only=False)
    propensity_RK = np.full(shape, np.nan)
    propensity_RK[row, position] = samples["propensity"].to_numpy()
    label_RKT = np.full((*shape, len(TASK_NAMES)), np.nan)
    for t, task in enumerate(TASK_NAMES):
        label_RKT[row, position, t] = samples[f"label_{task}"].cast(pa.float64()).to_numpy()
    pools = requests["candidates"].combine_chunks()
    starts = np.concatenate([[0], np.cumsum(pc.list_value_length(pools).to_numpy(zero_copy_only=False))])
    pool_P = pools.flatten().to_numpy()
    return Window(
        name=name, total_requests=total, request_R=request_R, viewer_R=requests["user_id"].to_numpy(),
        requested_at_R=requests["requested_at"].to_numpy(), pool_start_R=starts, pool_P=pool_P, created_at_P=_looked_up(pool_P, posts),
        post_RK=post_RK, shown_RK=post_RK >= 0, viewed_RK=viewed_RK, propensity_RK=propensity_RK, label_RKT=label_RKT,
    )  # fmt: skip


def _looked_up(pool_P: np.ndarray, posts: pa.Table) -> np.ndarray:
    ids, created_at = posts["post_id"].to_numpy(), posts["created_at"].to_numpy()
    if len(ids) == 0:
        return np.zeros(len(pool_P), np.int64)
    order = np.argsort(ids, kind="stable")
    at_P = order[np.minimum(np.searchsorted(ids[order], pool_P), len(ids) - 1)]
    return np.where(ids[at_P] == pool_P, created_at[at_P], 0)
