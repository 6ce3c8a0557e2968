"""The walk through the log: at each request every policy ranks the logged pool, knowing only what was known by then.

Shapes: R requests, K slate positions, P pool entries of all requests, N candidates of one request, F model inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from contracts.features import INPUT_NAMES
from contracts.splits import TimeSplit
from contracts.workspace import Workspace
from serving.feed import FeedPipeline, Query
from serving.log_changes import LogChanges
from serving.snapshot import snapshot
from serving.store.memory import MemoryStore
from simulator.replay.window import Window


@dataclass(frozen=True)
class Walked:
    """What the policies made of a window. Entries of P lie in the order of `Window.pool_P`.

    `slate_RK` by policy name, post ids, -1 empty; `inputs_PF` float32 model inputs as of each request;
    `allowed_P` false where the pipeline's filters refuse a post of the logged pool (inputs are 0 there);
    `dropped` how many each filter refused; `exact` the float64 inputs of the requests that were asked for.
    """

    slate_RK: dict[str, np.ndarray]
    inputs_PF: np.ndarray
    allowed_P: np.ndarray
    dropped: dict[str, int]
    degraded: dict[str, int]
    exact: "ExactInputs"


@dataclass(frozen=True)
class ExactInputs:
    """Inputs (N, F) float64 of candidates (request, post), for comparison with the batch."""

    request_N: np.ndarray
    post_N: np.ndarray
    inputs_NF: np.ndarray


class Walker:
    """The store as of a moment that only moves forward; windows are walked in their order in time."""

    def __init__(self, workspace: Workspace, split: TimeSplit):
        self.store: MemoryStore = snapshot(workspace, split.validation[0])
        self.changes = LogChanges(workspace, split.validation[0], split.test[1])

    def walk(self, window: Window, policies: Mapping[str, FeedPipeline], preparing: FeedPipeline,
             exact_R: np.ndarray | None = None) -> Walked:  # fmt: skip
        """Ranks every request of `window` by every policy, just before it was made; `preparing` hydrates it once for all.

        `exact_R`: mask of the requests whose float64 inputs are kept.
        """
        slate_RK = {name: np.full(window.post_RK.shape, -1, np.int64) for name in policies}
        inputs_PF = np.zeros((len(window.pool_P), len(INPUT_NAMES)), np.float32)
        allowed_P = np.zeros(len(window.pool_P), bool)
        dropped: dict[str, int] = {}
        degraded: dict[str, int] = {}
        kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for r in range(len(window.request_R)):
            now = int(window.requested_at_R[r])
            self.changes.advance(self.store, now)
            size = int(window.shown_RK[r].sum())
            query = Query(int(window.viewer_R[r]), now, size, int(window.request_R[r]), window.pool(r))
            prepared = preparing.prepare(query, self.store)
            for name, count in prepared.run.dropped.items():
                dropped[name] = dropped.get(name, 0) + count
            candidates = prepared.candidates
            rows = _rows_in_pool(window, r, candidates["post_id"])
            inputs_PF[rows] = candidates["inputs_NF"]
            allowed_P[rows] = True
            if exact_R is not None and exact_R[r]:
                kept.append(
                    (np.full(len(candidates), window.request_R[r]), candidates["post_id"], candidates["inputs_NF"])
                )
            for name, policy in policies.items():
                feed = policy.rank(prepared)
                slate_RK[name][r, : len(feed)] = feed.post_id_K
                for fault in feed.degraded:
                    degraded[fault] = degraded.get(fault, 0) + 1
        return Walked(slate_RK, inputs_PF, allowed_P, dropped, degraded, _exact(kept))


def _rows_in_pool(window: Window, r: int, post_N: np.ndarray) -> np.ndarray:
    """Indices (N,) into the P pool entries of posts of request r."""
    pool = window.pool(r)
    order = np.argsort(pool, kind="stable")
    return window.pool_start_R[r] + order[np.searchsorted(pool[order], post_N)]


def _exact(kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> ExactInputs:
    if not kept:
        return ExactInputs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, len(INPUT_NAMES))))
    return ExactInputs(*(np.concatenate(parts) for parts in zip(*kept)))
