"""A log of millions of events for timing: posts, impressions and actions, drawn and written a day at a time.

Skewed as feeds are: authors' popularity and topics follow Zipf's law (the first author earns nearly a tenth of all events),
people's activity is lognormal, each person mostly meets few of their ties, one action in fifty reaches the lake hours late.
People grow with events. Shapes: U people, T ties of each, P posts, N impressions, R requests, V views.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from contracts.clock import DAY, HOUR, SECOND
from contracts.dataset import Dataset
from contracts.progress import say
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS, TableSpec
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace

START = 19_700 * DAY
DAYS, LIVE_DAYS, WARMUP_DAYS = 28, 3, 7
EVENTS_PER_PERSON = 400
POSTS_PER_EVENT = 0.04
TIES, SLATE, TOPICS = 40, 8, 64
LOOKED_K = (1.0 + np.arange(SLATE)) ** -0.4
CHANCES = {"click": 0.16, "like": 0.07, "comment": 0.02, "share": 0.01, "hide": 0.005}
"""Of an action, given a look."""


@dataclass(frozen=True)
class Crowd:
    """Who there is: activity (U,) and popularity (U,) as cumulative shares, ties (U, T) nearest first, a main topic each."""

    active_U: np.ndarray
    posting_U: np.ndarray
    ties_UT: np.ndarray
    topic_U: np.ndarray


@dataclass(frozen=True)
class Written:
    """Posts of one day, or of several in order of author: ids from 1, authors and topics from 0."""

    post_id_P: np.ndarray
    author_P: np.ndarray
    topic_P: np.ndarray


def write_log(workspace: Workspace, events: int, seed: int = 7) -> dict[str, int]:
    """Writes a log of about `events` events (views, actions, posts) and its description; returns what is in it."""
    rng = np.random.default_rng(seed)
    crowd = _crowd(rng, max(50, events // EVENTS_PER_PERSON))
    posts_a_day = round(events * POSTS_PER_EVENT / DAYS)
    a_view = LOOKED_K.mean() * (1 + sum(CHANCES.values()))
    requests_a_day = round(events * (1 - POSTS_PER_EVENT) / a_view / SLATE / (DAYS - 1))
    counts = dict.fromkeys(("people", "posts", "impressions", "views", "actions"), 0) | {"people": len(crowd.topic_U)}
    recent: list[Written] = []
    for day in range(DAYS):
        day_at = START + day * DAY
        # On the first day there is nothing to show yet; later, what the days before have written.
        if recent:
            impressions, views_N = _impressions(rng, crowd, recent, day_at, requests_a_day, counts["impressions"])
            actions = _actions(rng, impressions.filter(pa.array(views_N)), counts["actions"])
            _write(workspace, IMPRESSIONS, impressions)
            _write(workspace, ACTIONS, actions)
            counts["impressions"] += impressions.num_rows
            counts["views"] += int(views_N.sum())
            counts["actions"] += actions.num_rows
        recent = [*recent, _posts(rng, crowd, workspace, day_at, posts_a_day, counts["posts"])][-LIVE_DAYS:]
        counts["posts"] += posts_a_day
        if day % 7 == 6:
            say(f"  {events:,} events: day {day + 1} of {DAYS} is on disk")
    Dataset(
        source="benchmark", start=START, end=START + DAYS * DAY, warmup_us=WARMUP_DAYS * DAY, attribution_us=DAY,
        live_us=LIVE_DAYS * DAY, tasks=TASK_NAMES, has_propensities=False, counts=counts,
    ).save(workspace.dataset_path)  # fmt: skip
    return counts | {"events": counts["views"] + counts["actions"] + counts["posts"]}


def _crowd(rng: np.random.Generator, people: int) -> Crowd:
    rank_U = 1.0 + rng.permutation(people)
    popular_U = np.cumsum(1.0 / rank_U)
    ties_UT = np.searchsorted(popular_U / popular_U[-1], rng.random((people, TIES)))
    active_U, posting_U = np.cumsum(rng.lognormal(0.0, 0.8, people)), np.cumsum(rank_U**-0.5)
    return Crowd(active_U / active_U[-1], posting_U / posting_U[-1], ties_UT, _topics(rng, people))


def _topics(rng: np.random.Generator, count: int) -> np.ndarray:
    share = np.cumsum(1.0 / (1.0 + np.arange(TOPICS)))
    return np.searchsorted(share / share[-1], rng.random(count)).astype(np.int32)


def _moments(rng: np.random.Generator, day_at: int, count: int) -> np.ndarray:
    """Moments of a day, most of them around noon, UTC microseconds."""
    return day_at + ((rng.random(count) + rng.random(count)) / 2 * (DAY - HOUR)).astype(np.int64)


def _delay(rng: np.random.Generator, mean_us: float, count: int) -> np.ndarray:
    return 1 + (rng.standard_exponential(count) * mean_us).astype(np.int64)


def _posts(
    rng: np.random.Generator, crowd: Crowd, workspace: Workspace, day_at: int, count: int, before: int
) -> Written:
    author_P = np.searchsorted(crowd.posting_U, rng.random(count))
    topic_P = np.where(rng.random(count) < 0.6, crowd.topic_U[author_P], _topics(rng, count)).astype(np.int32)
    created_P = _moments(rng, day_at, count)
    made = Written(1 + before + np.arange(count), author_P, topic_P)
    _write(workspace, POSTS, _table(
        POSTS, post_id=made.post_id_P, author_id=1 + author_P, created_at=created_P,
        known_at=created_P + _delay(rng, 2 * SECOND, count), kind=pa.repeat("photo", count), topic=topic_P,
        visibility=pa.repeat("friends", count),
    ))  # fmt: skip
    return made


def _impressions(rng: np.random.Generator, crowd: Crowd, recent: list[Written], day_at: int, requests: int, before: int
                 ) -> tuple[pa.Table, np.ndarray]:  # fmt: skip
    """One day's slates and which of their posts were looked at (N,)."""
    author_P, post_P = (np.concatenate([getattr(one, name) for one in recent]) for name in ("author_P", "post_id_P"))
    order = np.argsort(author_P, kind="stable")
    author_P, post_P = author_P[order], post_P[order]
    begins_U = np.searchsorted(author_P, np.arange(len(crowd.topic_U) + 1))
    viewer_N = np.repeat(np.searchsorted(crowd.active_U, rng.random(requests)), SLATE)
    count = len(viewer_N)
    # A tie who has written lately, the near ones more often; after three tries without luck, any recent post.
    chosen_N = (len(post_P) * rng.random(count)).astype(np.int64)
    open_N = np.ones(count, bool)
    for _ in range(3):
        tie_N = crowd.ties_UT[viewer_N, (TIES * rng.random(count) ** 2.5).astype(np.int64)]
        width_N = begins_U[tie_N + 1] - begins_U[tie_N]
        taken_N = open_N & (width_N > 0)
        chosen_N = np.where(taken_N, begins_U[tie_N] + (rng.random(count) * width_N).astype(np.int64), chosen_N)
        open_N &= ~taken_N
    shown_N = np.repeat(_moments(rng, day_at, requests), SLATE)
    position_N = np.tile(np.arange(SLATE, dtype=np.int32), requests)
    viewed_N = rng.random(count) < LOOKED_K[position_N]
    looked_ms_N = np.where(viewed_N, 200 + _delay(rng, 3000, count), 0)
    table = _table(
        IMPRESSIONS, request_id=1 + before // SLATE + np.repeat(np.arange(requests), SLATE), user_id=1 + viewer_N,
        post_id=post_P[chosen_N], author_id=1 + author_P[chosen_N], position=position_N, shown_at=shown_N,
        viewed_ms=looked_ms_N, policy=pa.repeat("ties", count),
        known_at=shown_N + np.repeat(_delay(rng, 2 * SECOND, requests), SLATE),
    )  # fmt: skip
    return table, viewed_N


def _actions(rng: np.random.Generator, views: pa.Table, before: int) -> pa.Table:
    """What was done on the posts that were looked at."""
    acted = [np.flatnonzero(rng.random(views.num_rows) < chance) for chance in CHANCES.values()]
    done = views.take(pa.array(np.concatenate(acted)))
    count = done.num_rows
    occurred_N = done["shown_at"].to_numpy() + _delay(rng, 20 * SECOND, count)
    late_N = np.where(rng.random(count) < 0.02, _delay(rng, 4 * HOUR, count), _delay(rng, 5 * SECOND, count))
    kinds = pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(CHANCES)), [len(at) for at in acted]), list(CHANCES))
    return _table(
        ACTIONS, action_id=1 + before + np.arange(count), request_id=done["request_id"], user_id=done["user_id"],
        post_id=done["post_id"], author_id=done["author_id"], kind=kinds, occurred_at=occurred_N,
        known_at=occurred_N + late_N,
    )  # fmt: skip


def _table(spec: TableSpec, **columns: object) -> pa.Table:
    """A table of `spec`; columns that are not given are empty."""
    rows = len(next(iter(columns.values())))  # type: ignore[arg-type]
    return pa.table({f.name: columns.get(f.name, pa.nulls(rows, f.type)) for f in spec.schema})


def _write(workspace: Workspace, spec: TableSpec, table: pa.Table) -> None:
    workspace.lake.write(spec, table, keep_other_days=True)
