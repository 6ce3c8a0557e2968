"""Writes what happened to the lake as the days pass, so that a log need not fit into memory."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa

from contracts.clock import DAY
from contracts.lake import TableManifest, conform
from contracts.progress import say
from contracts.tables import ACTIONS, IMPRESSIONS, REQUESTS, SESSIONS, TableSpec
from contracts.tasks import TASK_NAMES
from simulator.environment import log_tables
from simulator.environment.happened import Log
from simulator.environment.pools import PoolMaker
from simulator.environment.settings import EnvironmentSettings
from simulator.environment.world import World


class TableWriter(Protocol):
    """Where a log is written to: a lake, or memory."""

    def write(self, spec: TableSpec, table: pa.Table, *, keep_other_days: bool = False) -> TableManifest:
        """Replaces the table, or the days of it that `table` has rows of."""


class DaySink:
    """A table whose rows come in order of days; rows of a day that is not over wait for those that still come."""

    def __init__(self, lake: TableWriter, spec: TableSpec):
        self._lake, self.spec = lake, spec
        self._waiting = spec.schema.empty_table()
        self.manifest: TableManifest | None = None

    def add(self, table: pa.Table, until: int | None) -> None:
        """Takes rows, and writes those before `until` (UTC us; None: all)."""
        table = pa.concat_tables([self._waiting, conform(table, self.spec)])
        over_N = np.ones(table.num_rows, bool)
        if until is not None:
            over_N = table[self.spec.day_column].to_numpy() < until
        ready, self._waiting = table.filter(pa.array(over_N)), table.filter(pa.array(~over_N))
        if ready.num_rows or self.manifest is None:
            self.manifest = self._lake.write(self.spec, ready, keep_other_days=self.manifest is not None)


class LogWriter:
    """Requests, impressions, actions and sessions of a log, from its days in order.

    A log of few people is drawn and written in one piece, one of many (`EnvironmentSettings.by_day`) day by day.
    """

    def __init__(self, rng: np.random.Generator, lake: TableWriter, settings: EnvironmentSettings, maker: PoolMaker,
                 world: World, policy_name: str):  # fmt: skip
        self._rng, self._settings, self._maker, self._policy = rng, settings, maker, policy_name
        self._world = world
        self._sinks = {spec.name: DaySink(lake, spec) for spec in (REQUESTS, IMPRESSIONS, ACTIONS, SESSIONS)}
        self._actions: list[log_tables.Columns] = []
        self._requests, self._done_actions = 0, 0
        self._viewed, self._acted_A, self._candidates = 0, np.zeros(len(TASK_NAMES), np.int64), 0

    def write(self, logs: Iterable[Log]) -> dict[str, TableManifest]:
        """Writes all days; returns the manifests of the tables."""
        if self._settings.by_day:
            for day, log in enumerate(logs):
                last = day == self._settings.days - 1
                self._piece(log, day, 1, None if last else self._settings.start_at + (day + 1) * DAY)
                say(f"day {day + 1} of {self._settings.days}: {len(log.user_N):,} requests")
        else:
            self._piece(Log.joined(list(logs)), 0, self._settings.days, None)
        return {name: sink.manifest for name, sink in self._sinks.items() if sink.manifest is not None}

    def rates(self) -> dict[str, float]:
        """Actions per viewed impression, by task, of what was written."""
        return {name: float(self._acted_A[i] / max(self._viewed, 1)) for i, name in enumerate(TASK_NAMES)}

    def mean_pool(self) -> float:
        """Candidates per request, of what was written."""
        return self._candidates / self._requests if self._requests else float("nan")

    def _piece(self, log: Log, first_day: int, days: int, until: int | None) -> None:
        settings, posts, first = self._settings, self._maker.posts, 1 + self._requests
        self._sinks["requests"].add(log_tables.requests_table(log, settings.slate_size, first, self._policy), until)
        self._sinks["impressions"].add(log_tables.impressions_table(self._rng, log, posts, first, self._policy), until)
        done = [log_tables.feed_actions(self._rng, log, first),
                log_tables.profile_visits(self._rng, settings, self._maker, self._world.latents, first_day, days)]  # fmt: skip
        self._actions.append(log_tables.with_delays(self._rng, log_tables.joined(done)))
        self._write_actions(until)
        self._sinks["sessions"].add(log_tables.sessions_table(log), until)
        self._requests += len(log.user_N)
        self._viewed += int(log.viewed_NK.sum())
        self._acted_A += log.acted_NKA.sum(axis=(0, 1))
        self._candidates += int((log.pools_NM >= 0).sum())

    def _write_actions(self, until: int | None) -> None:
        """Numbers follow time, so an action that lies on a later day waits until that day is over."""
        waiting = log_tables.joined(self._actions)
        now_J = waiting["occurred_at"] < (until if until is not None else np.iinfo(np.int64).max)
        self._actions = [{name: values[~now_J] for name, values in waiting.items()}]
        known_J = now_J & (waiting["known_at"] < self._settings.end_at)
        ready = {name: values[known_J] for name, values in waiting.items()}
        self._sinks["actions"].add(log_tables.actions_table(ready, self._maker.posts, 1 + self._done_actions), until)
        self._done_actions += int(known_J.sum())
