"""The feed pipeline: a query goes in, and a feed comes out of the stages that a policy lists.

    query hydrators -> sources -> documents -> filters -> merge -> features -> scorers -> selector <-> post filters -> side effects

The same object runs in the API over Redis and in replay over memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from recall.posts import Ranked
from serving.feed.candidates import Candidates, Feed, Prepared, Query, Run
from serving.feed.hydrators import gathered
from serving.feed.merge import Merge, Pool
from serving.feed.stage import Filter, Hydrator, Overtaken, QueryHydrator, Scorer, Selector, SideEffect, Source
from serving.feed.timing import Inline, Punctual
from serving.store.protocol import Store, StoreDown

_ATTEMPTS = 64
"""How often a feed is selected when others of the same viewer come first: each time, one of them has succeeded."""


@dataclass(frozen=True)
class FeedPipeline:
    """One policy: its stages in order. Raises ValueError when a stage reads a column that none before it adds."""

    policy: str
    query_hydrators: Sequence[QueryHydrator]
    sources: Sequence[Source]
    documents: Hydrator
    filters: Sequence[Filter]
    merge: Merge | Pool
    features: Hydrator
    scorers: Sequence[Scorer]
    selector: Selector
    post_filters: Sequence[Filter]
    side_effects: Sequence[SideEffect] = ()
    runner: Inline | Punctual = field(default_factory=Inline)

    def __post_init__(self) -> None:
        there = {"post_id", "brought_NP", *self.documents.adds}
        stages: list[Filter | Hydrator | Scorer | Selector]
        stages = [*self.filters, self.features, *self.scorers, self.selector, *self.post_filters]
        for stage in stages:
            if missing := set(stage.reads) - there - set(self.merge.adds):
                raise ValueError(
                    f"stage {stage.name} of policy {self.policy} reads {', '.join(sorted(missing))}, which no stage adds"
                )
            there |= set(getattr(stage, "adds", ()))

    def run(self, query: Query, store: Store) -> Feed:
        """A whole feed over `store`, side effects included.

        `StoreDown` when the store does not answer, or too many feeds of one viewer are made at once.
        """
        prepared = self.prepare(query, store)
        scored = self._score(prepared)
        for _ in range(_ATTEMPTS):
            feed = self._feed(prepared, scored)
            try:
                for effect in self.side_effects:
                    self.runner.call(prepared.run, effect.name, partial(effect.run, prepared.run, feed))
                return feed
            except Overtaken:
                prepared, scored = self._without_shown(prepared, scored)
        raise StoreDown(f"user {query.user_id} asks for too many feeds at once: ask again")

    def prepare(self, query: Query, store: Store) -> Prepared:
        """Everything up to the features, which does not depend on how the policy scores: candidates with inputs."""
        run, call = Run(query, store), self.runner.call
        for hydrator in self.query_hydrators:
            call(run, hydrator.name, partial(hydrator.hydrate, run))
        ranked: dict[str, Ranked] = self.runner.call_all(
            run, {source.name: partial(source.retrieve, run) for source in self.sources}, "sources"
        )
        candidates = gathered(ranked)
        candidates = call(run, self.documents.name, partial(self.documents.hydrate, run, candidates))
        candidates = self._filter(run, self.filters, candidates)
        candidates = call(run, self.merge.name, partial(self.merge.merge, run, candidates, ranked))
        candidates = call(
            run, self.features.name, partial(self.features.hydrate, run, candidates),
            partial(self.features.defaults, run, candidates),
        )  # fmt: skip
        return Prepared(run, candidates)

    def rank(self, prepared: Prepared) -> Feed:
        """Scores, selects and looks once more at the live state; `prepared` may be ranked by many policies."""
        return self._feed(prepared, self._score(prepared))

    def _score(self, prepared: Prepared) -> Candidates:
        run, candidates = prepared.run, prepared.candidates
        for scorer in self.scorers:
            candidates = self.runner.call(
                run, scorer.name, partial(scorer.score, run, candidates),
                partial(scorer.fallback, run, candidates),
            )  # fmt: skip
        return candidates

    def _feed(self, prepared: Prepared, scored: Candidates) -> Feed:
        run, considered_N = prepared.run, prepared.candidates["post_id"]
        shown = self.runner.call(run, self.selector.name, partial(self._select, run, scored))
        return Feed(run.query, run.viewer, self.policy, shown, tuple(run.degraded), run.took_ms, considered_N)

    def _without_shown(self, prepared: Prepared, scored: Candidates) -> tuple[Prepared, Candidates]:
        """Both as they are with the viewer read anew; from the start when too few scored candidates are left."""
        run = prepared.run
        for hydrator in self.query_hydrators:
            self.runner.call(run, hydrator.name, partial(hydrator.hydrate, run))
        left = scored.take(~np.isin(scored["post_id"], run.viewer.seen_M))
        if len(left) < run.query.size:
            prepared = self.prepare(run.query, run.store)
            return prepared, self._score(prepared)
        candidates = prepared.candidates
        return Prepared(run, candidates.take(~np.isin(candidates["post_id"], run.viewer.seen_M))), left

    def _select(self, run: Run, candidates: Candidates) -> Candidates:
        """Selects, drops what may no longer be shown, and selects again from the rest: slots are given to what is seen."""
        while True:
            rows, explored = self.selector.select(run, candidates, run.query.size)
            shown = candidates.take(rows).adding(explored=explored)
            keep = np.ones(len(rows), bool)
            for post_filter in self.post_filters:
                keep &= post_filter.keep(run, shown)
            if keep.all():
                return shown
            candidates = candidates.take(~np.isin(candidates["post_id"], shown["post_id"][~keep]))

    def _filter(self, run: Run, filters: Sequence[Filter], candidates: Candidates) -> Candidates:
        for one in filters:
            keep = self.runner.call(run, one.name, partial(one.keep, run, candidates))
            run.dropped[one.name] = int(len(candidates) - keep.sum())
            candidates = candidates.take(keep)
        return candidates
