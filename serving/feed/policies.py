"""The named policies, each as its list of stages: this file shows the whole feed at a glance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recall.runtime import RecallRuntime
from recall.settings import RecallSettings
from serving.feed.filters import Found, NotHidden, NotOwn, NotSeen, NotTooOld, Visible
from serving.feed.hydrators import Documents, Features
from serving.feed.live_recall import LiveRecall
from serving.feed.merge import Merge, Pool
from serving.feed.pipeline import FeedPipeline
from serving.feed.post_filters import StillVisible
from serving.feed.query_hydrators import ViewerHydrator
from serving.feed.scorers import (
    Chronological,
    MergedOrder,
    Popularity,
    Prerank,
    PrerankStage,
    Ranker,
    RankStage,
    Shuffled,
    ValueStage,
)
from serving.feed.selector import DiverseSelector, TopN
from serving.feed.sources import CollaborativeSource, PoolSource, PopularSource, SocialSource, VectorSource
from serving.feed.stage import Filter, Scorer, Selector, SideEffect, Source
from serving.feed.timing import Inline, Punctual
from serving.feed.value import ValueModel
from serving.settings import FeedSettings

POLICIES = ("chronological", "popularity", "random", "prerank", "full")
"""`full` is what serves; the others are what it is judged against, and what it falls back to without its models."""


@dataclass(frozen=True)
class Models:
    """The models in force; None for one that is not trained. `versions`: artifact versions by kind."""

    prerank: Prerank | None
    ranker: Ranker | None
    recall: RecallRuntime | LiveRecall | None
    value: ValueModel
    versions: dict[str, str]


def pool_policy(name: str, models: Models, live_us: int, settings: FeedSettings | None = None,
                rng: np.random.Generator | None = None) -> FeedPipeline:  # fmt: skip
    """A policy over a query's own pool, for replay: the serving stages from the documents on, strict and unhurried.

    `live_us`: how long a post stays a candidate (us). `rng` is wanted by the policy "random" alone.
    """
    settings = settings or FeedSettings()
    scorers, selector = _ranking(name, models, settings, rng)
    return FeedPipeline(
        policy=name, query_hydrators=[ViewerHydrator()], sources=[PoolSource()], documents=Documents(),
        filters=_filters(live_us), merge=Pool(), features=Features(), scorers=scorers, selector=selector, post_filters=[],
    )  # fmt: skip


def serving_policy(name: str, models: Models, live_us: int, *, settings: FeedSettings | None = None,
                   runner: Inline | Punctual | None = None, side_effects: Sequence[SideEffect] = (),
                   rng: np.random.Generator | None = None) -> FeedPipeline:  # fmt: skip
    """A policy over the recall paths, for people."""
    settings = settings or FeedSettings()
    recall = models.recall.settings if models.recall else RecallSettings()
    scorers, selector = _ranking(name, models, settings, rng)
    return FeedPipeline(
        policy=name, query_hydrators=[ViewerHydrator()], sources=_sources(models, recall, settings, live_us),
        documents=Documents(), filters=_filters(live_us), merge=Merge(recall.merge, settings.candidates),
        features=Features(), scorers=scorers, selector=selector, post_filters=[StillVisible()],
        side_effects=side_effects, runner=runner or Inline(),
    )  # fmt: skip


def deadlines(settings: FeedSettings) -> dict[str, float]:
    """Milliseconds per stage name, for `Punctual`."""
    paths = ("social", "collaborative", "popular", "vector")
    return {
        **dict.fromkeys(paths, settings.source_deadline_ms),
        "features": settings.hydrate_deadline_ms,
        **dict.fromkeys(("prerank", "rank", "value"), settings.rank_deadline_ms),
    }


def _sources(models: Models, recall: RecallSettings, settings: FeedSettings, live_us: int) -> list[Source]:
    sources: list[Source] = [SocialSource(recall, settings, live_us)]
    if models.recall is not None:
        sources += [
            CollaborativeSource(models.recall, live_us),
            PopularSource(models.recall),
            VectorSource(models.recall),
        ]
    return sources


def _filters(live_us: int) -> list[Filter]:
    return [Found(), NotTooOld(live_us), NotOwn(), NotSeen(), NotHidden(), Visible()]


def _ranking(name: str, models: Models, settings: FeedSettings,
             rng: np.random.Generator | None) -> tuple[list[Scorer], Selector]:  # fmt: skip
    if name == "chronological":
        return [Chronological()], TopN()
    if name == "popularity":
        return [Popularity()], TopN()
    if name == "random":
        if rng is None:
            raise ValueError("the policy random wants a generator")
        return [Shuffled(rng)], TopN()
    if name not in POLICIES:
        raise ValueError(f"there is no policy {name}; there are {', '.join(POLICIES)}")
    scorers: list[Scorer] = [MergedOrder()]
    if models.prerank is not None:
        scorers = [PrerankStage(models.prerank, settings.prerank_keep)]
    if name == "prerank":
        return scorers, TopN()
    if models.ranker is not None:
        scorers += [RankStage(models.ranker), ValueStage(models.value)]
    return scorers, DiverseSelector(settings)
