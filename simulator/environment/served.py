"""The feed pipeline that serves, as a policy of the environment: the same object, over a store in memory.

Shapes: N requests, M pool slots, K slate positions.
"""

from typing import Any

import numpy as np

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.workspace import Workspace
from serving.feed import FeedPipeline, Query, load_models, pool_policy
from serving.log_changes import LogChanges
from serving.store.memory import MemoryStore
from simulator.environment.policy import Chosen, Outcome, Requests, draw_slates, mixture_propensities
from simulator.environment.settings import EnvironmentSettings

SERVED_NAMES = ("chronological", "popularity", "prerank", "full")


class ServedPolicy:
    """Fills feeds one by one. At a request it knows all posts, people and ties of the day, and what happened in feeds
    until the last midnight; the log must therefore be written day by day (`EnvironmentSettings.by_day`).

    With probability `epsilon` a slate is a uniformly random ordering of the pool instead.
    """

    def __init__(self, pipeline: FeedPipeline, log: Workspace, settings: EnvironmentSettings, epsilon: float = 0.0):
        if not settings.by_day:
            raise BadInput(
                "the feed pipeline reads what happened from the lake: set daily, so that days are written as they end"
            )
        self._pipeline, self._log, self._settings, self._epsilon = pipeline, log, settings, epsilon
        self._store = MemoryStore()
        self._given_until, self._happened_until = 0, settings.start_at

    @property
    def name(self) -> str:
        """What the log calls it."""
        return f"epsilon-served-{self._pipeline.policy}" if self._epsilon else f"served-{self._pipeline.policy}"

    def choose(self, rng: np.random.Generator, requests: Requests) -> Chosen:
        """The pipeline's slates, or random ones; where its filters leave too few posts, its slate is shorter."""
        if not len(requests.user_id_N):
            return Chosen(np.zeros((0, requests.slate_size), np.int64), np.zeros((0, requests.slate_size)))
        self._begin_day(int(requests.requested_at_N.min()) // DAY * DAY)
        own_NK = np.full((len(requests.user_id_N), requests.slate_size), -1)
        for n, pool_M in enumerate(requests.pool_NM):
            pool_M = pool_M[pool_M >= 0]
            query = Query(
                int(requests.user_id_N[n]), int(requests.requested_at_N[n]), requests.slate_size, pool_N=pool_M
            )
            shown_K = self._pipeline.rank(self._pipeline.prepare(query, self._store)).post_id_K
            own_NK[n, : len(shown_K)] = np.searchsorted(pool_M, shown_K)
        sizes_N = (requests.pool_NM >= 0).sum(axis=1)
        any_NM = np.broadcast_to(np.arange(requests.pool_NM.shape[1]), requests.pool_NM.shape)
        random_NK, drawn_N = draw_slates(rng, any_NM, sizes_N, requests.slate_size, self._epsilon)
        slot_NK = np.where(drawn_N[:, None], random_NK, own_NK)
        return Chosen(slot_NK, mixture_propensities(slot_NK, own_NK, sizes_N, self._epsilon))

    def observe(self, outcome: Outcome) -> None:
        """Nothing: what happened is read from the lake, as serving does."""

    def _begin_day(self, day_at: int) -> None:
        live_us = self._settings.live_us
        if day_at > self._happened_until:
            happened = LogChanges(self._log, self._happened_until, day_at, live_us=live_us, parts=("happened",))
            happened.advance(self._store, day_at)
            self._happened_until = day_at
        if day_at + DAY > self._given_until:
            given = LogChanges(self._log, self._given_until, day_at + DAY, live_us=live_us, parts=("given",))
            given.advance(self._store, day_at + DAY)
            self._given_until = day_at + DAY


def served_settings(text: str) -> dict[str, Any]:
    """How the serving policy `NAME` or `NAME:EPSILON` explores, as settings; `BadInput` for another name or number."""
    chance = _name_and_chance(text)[1]
    return {"exploration": "epsilon", "epsilon": chance} if chance else {"exploration": "none"}


def _name_and_chance(text: str) -> tuple[str, float]:
    name, _, epsilon = text.partition(":")
    if name not in SERVED_NAMES:
        raise BadInput(f"there is no served policy {name!r}; there are {', '.join(SERVED_NAMES)}")
    try:
        chance = float(epsilon or 0.0)
    except ValueError:
        chance = -1.0
    if not 0.0 <= chance <= 1.0:
        raise BadInput(f"epsilon is {epsilon!r}; it must be a number between 0 and 1")
    return name, chance


def served_policy(text: str, models: Workspace, log: Workspace, settings: EnvironmentSettings) -> ServedPolicy:
    """The serving policy `NAME` or `NAME:EPSILON` with the models in force in a workspace; `BadInput` for another name,
    and where a model that it needs was never trained."""
    name, chance = _name_and_chance(text)
    found = load_models(models, with_recall=False)
    missing = [kind for kind, needed in (("prerank", ("prerank", "full")), ("ranker", ("full",)))
               if name in needed and getattr(found, kind) is None]  # fmt: skip
    if missing:
        raise BadInput(
            f"policy {name} needs the model {' and '.join(missing)}, which {models.root} does not have: train it first"
        )
    return ServedPolicy(pool_policy(name, found, settings.live_us), log, settings, chance)
