"""Where candidates come from: friends' posts, channels the viewer likes, popular posts, nearest vectors, a logged pool.

Shapes: F friends, C channels, R records.
"""

import numpy as np

from contracts.features import FAMILIES
from recall.collaborative import rank_collaborative
from recall.posts import PostColumns, Ranked
from recall.runtime import RecallRuntime
from recall.settings import RecallSettings
from recall.social import rank_social, tie_strength
from serving.features.hydrate import active_friends, decayed, members
from serving.feed.candidates import Run
from serving.feed.live_recall import LiveRecall
from serving.settings import FeedSettings
from serving.store.families import FRIEND, POST, key
from serving.store.packing import FRIEND_CODE, unpack_many_records, unpack_states

_MOST_SPARE = 2000


class PoolSource:
    """The pool that the query names: what a logged request could choose from."""

    name = "pool"

    def retrieve(self, run: Run) -> Ranked:
        pool_N = np.unique(np.asarray(run.query.pool_N if run.query.pool_N is not None else [], np.int64))
        unknown_N = np.zeros(len(pool_N), np.int64)  # the documents say the rest
        return Ranked(PostColumns(pool_N, unknown_N, unknown_N, unknown_N, unknown_N), np.zeros(len(pool_N)))


class SocialSource:
    """Posts of the viewer's friends by tie strength and freshness, with places for friends never contacted."""

    name = "social"

    def __init__(self, recall: RecallSettings, feed: FeedSettings, live_us: int):
        self.recall, self.feed, self.live_us = recall, feed, live_us

    def retrieve(self, run: Run) -> Ranked:
        query = run.query
        active_RW = active_friends(run.viewer.friends_RW, query.now)
        newest_first = active_RW[np.argsort(-active_RW[:, 2], kind="stable"), 0]
        friends_F = np.unique(newest_first[: self.feed.friends_read])
        friends = friends_F.tolist()
        families = ("by_author", "tie", "back", "friends")
        keys = [key("by_author", friend) for friend in friends]
        keys += [key("tie", query.user_id, friend) for friend in friends]
        keys += [key("tie", friend, query.user_id) for friend in friends]
        keys += [key("friends", friend) for friend in friends]
        values = run.store.get_many(keys)
        got = {name: values[i * len(friends) : (i + 1) * len(friends)] for i, name in enumerate(families)}
        family = FAMILIES["tie"]
        tie_FC, back_FC = (
            decayed(unpack_states(got[name], family.width), "tie", query.now) for name in ("tie", "back")
        )
        recent, lasting = family.slot("contacts_14d"), family.slot("contacts_180d")
        circle_RW, owner_R = unpack_many_records(got["friends"], FRIEND)
        current_R = circle_RW[:, 3] > query.now
        mutual_F = members(owner_R[current_R], circle_RW[current_R, 0], friends_F, len(friends))
        special = active_RW[active_RW[:, 1] == FRIEND_CODE["special_care"], 0]
        strength_F = tie_strength(
            tie_FC[:, recent], tie_FC[:, lasting], back_FC[:, lasting], mutual_F, np.isin(friends_F, special),
            self.recall.social,
        )  # fmt: skip
        posts = unseen(run, live_posts(got["by_author"], query.now, self.live_us))
        return rank_social(posts, friends_F, strength_F, tie_FC[:, lasting] > 0, query.now,
                           self.recall.merge.quota.get(self.name, 200), self.recall.social)  # fmt: skip


class CollaborativeSource:
    """Live posts of the channels (subjects, else authors) that people with like tastes go to."""

    name = "collaborative"

    def __init__(self, runtime: RecallRuntime | LiveRecall, live_us: int):
        self.runtime, self.live_us = runtime, live_us

    def retrieve(self, run: Run) -> Ranked:
        settings = self.runtime.settings
        channel_id_C, score_C = self.runtime.channels(run.query.user_id)
        keys = [key("by_author" if channel >= 0 else "by_channel", channel) for channel in channel_id_C.tolist()]
        posts = unseen(run, live_posts(run.store.get_many(keys) if keys else [], run.query.now, self.live_us))
        return rank_collaborative(posts, channel_id_C, score_C, run.query.now,
                                  settings.merge.quota.get(self.name, 200), settings.collaborative)  # fmt: skip


class PopularSource:
    """What most people like now, those of the viewer's own city counting more."""

    name = "popular"

    def __init__(self, runtime: RecallRuntime | LiveRecall):
        self.runtime = runtime

    def retrieve(self, run: Run) -> Ranked:
        profile, quota = run.viewer.profile, self.runtime.settings.merge.quota.get(self.name, 200)
        city = (profile.city or None) if profile else None
        found = self.runtime.popular(run.query.user_id, run.query.now, _with_spare(run, quota), city=city)
        return first_unseen(run, found, quota)


class VectorSource:
    """Public posts nearest to the viewer's vector."""

    name = "vector"

    def __init__(self, runtime: RecallRuntime | LiveRecall):
        self.runtime = runtime

    def retrieve(self, run: Run) -> Ranked:
        quota = self.runtime.settings.merge.quota.get(self.name, 200)
        found = self.runtime.search(run.query.user_id, run.query.now, _with_spare(run, quota))
        return first_unseen(run, found, quota)


def unseen(run: Run, posts: PostColumns) -> PostColumns:
    """The posts that the viewer was not shown yet: seen ones must not use up a path's quota, or pages would run dry."""
    return posts.take(~np.isin(posts.post_id_N, run.viewer.seen_M)) if len(run.viewer.seen_M) else posts


def first_unseen(run: Run, ranked: Ranked, n: int) -> Ranked:
    """The first `n` that the viewer was not shown yet."""
    rows = np.flatnonzero(~np.isin(ranked.posts.post_id_N, run.viewer.seen_M))[:n]
    return Ranked(ranked.posts.take(rows), ranked.score_K[rows])


def _with_spare(run: Run, quota: int) -> int:
    """How many to ask for so that `quota` are left without the seen ones."""
    return quota + min(len(run.viewer.seen_M), _MOST_SPARE)


def live_posts(values: list[bytes | None], now: int, live_us: int) -> PostColumns:
    """The posts of many POST lists that are young enough at `now` (UTC us)."""
    records_RW, _ = unpack_many_records(values, POST)
    records_RW = records_RW[(records_RW[:, 4] > now - live_us) & (records_RW[:, 4] <= now)]
    return PostColumns(*(np.ascontiguousarray(records_RW[:, column]) for column in range(5)))
