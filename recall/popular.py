"""Popular recall: decayed engagement per post, with back-off from the city to everybody and from the post to its channel.

Engagements are kept in forward-decayed form: one of weight w at time e adds w * 2 ** ((e - anchor) / half_life), so
adding is all that happens as time passes and the order at any later moment needs no recount (Cormode et al.,
"Forward decay", ICDE 2009). Shapes: P posts known, C cities, N posts asked for.
"""

import numpy as np

from contracts.tasks import TASKS
from recall.posts import PostColumns, Ranked, top
from recall.settings import PopularSettings

ENGAGEMENT_WEIGHTS = {task.kind: task.worth for task in TASKS if task.worth > 0}
"""What one action adds: its worth to the product. A hide adds nothing here; filters and rankers deal with it."""

POSTING_WEIGHT = ENGAGEMENT_WEIGHTS["share"]
"""What a post about a subject adds: who posts about an artist likes that artist."""

_LARGEST_EXPONENT = 512.0


class PopularCounts:
    """Decayed engagement per post, per post and city, and per channel, up to the last `add`."""

    def __init__(self, post_id_P: np.ndarray, channel_id_P: np.ndarray, cities: tuple[str, ...], half_life_us: int,
                 anchor: int):  # fmt: skip
        """`post_id_P` must be unique; `anchor` is any moment near the first engagement, in UTC microseconds."""
        order_P = np.argsort(post_id_P, kind="stable")
        self.post_id_P = np.asarray(post_id_P, np.int64)[order_P]
        self.channel_id_P = np.asarray(channel_id_P, np.int64)[order_P]
        self.cities, self.half_life_us, self.anchor = tuple(cities), half_life_us, anchor
        self.channel_id_H, self.channel_P = np.unique(self.channel_id_P, return_inverse=True)
        self.city_PC = np.zeros((len(post_id_P), len(self.cities)))
        self.all_P = np.zeros(len(post_id_P))
        self.channel_H = np.zeros(len(self.channel_id_H))
        self._city_code = {city: code for code, city in enumerate(self.cities)}

    def rows(self, post_id_N: np.ndarray) -> np.ndarray:
        """Row (N,) of each post, -1 for posts not known here."""
        at_N = np.minimum(np.searchsorted(self.post_id_P, post_id_N), max(len(self.post_id_P) - 1, 0))
        if not len(self.post_id_P):
            return np.full(len(post_id_N), -1)
        return np.where(self.post_id_P[at_N] == post_id_N, at_N, -1)

    def add(self, row_M: np.ndarray, weight_M: np.ndarray, city_code_M: np.ndarray, occurred_at_M: np.ndarray) -> None:
        """Adds engagements of posts in rows `row_M`; `city_code_M` is -1 where the person's city is unknown."""
        if not len(row_M):
            return
        exponent_M = (np.asarray(occurred_at_M, np.int64) - self.anchor) / self.half_life_us
        if exponent_M.max() > _LARGEST_EXPONENT:
            self._move_anchor(int(np.max(occurred_at_M)))
            exponent_M = (np.asarray(occurred_at_M, np.int64) - self.anchor) / self.half_life_us
        added_M = np.asarray(weight_M, np.float64) * np.exp2(exponent_M)
        np.add.at(self.all_P, row_M, added_M)
        np.add.at(self.channel_H, self.channel_P[row_M], added_M)
        known_M = np.asarray(city_code_M) >= 0
        np.add.at(self.city_PC, (row_M[known_M], np.asarray(city_code_M)[known_M]), added_M[known_M])

    def load_state(
        self, all_P: np.ndarray, city_PC: np.ndarray, channel_id_H: np.ndarray, channel_H: np.ndarray
    ) -> None:
        """Takes over counts saved as `all_P`, `city_PC` (in the order of post ids) and `channel_H` per `channel_id_H`.

        Channels of which no post is known here are kept for posts that come later.
        """
        self.all_P, self.city_PC = all_P, city_PC
        self._grow_channels(channel_id_H)
        self.channel_H[np.searchsorted(self.channel_id_H, channel_id_H)] = channel_H

    def _grow_channels(self, channel_id_N: np.ndarray) -> None:
        grown_H = np.union1d(self.channel_id_H, channel_id_N)
        counted_H = np.zeros(len(grown_H))
        counted_H[np.searchsorted(grown_H, self.channel_id_H)] = self.channel_H
        self.channel_id_H, self.channel_H = grown_H, counted_H
        self.channel_P = np.searchsorted(grown_H, self.channel_id_P)

    def add_posts(self, post_id_N: np.ndarray, channel_id_N: np.ndarray) -> None:
        """Makes new posts known; those already known stay as they are."""
        post_id_N, channel_id_N = np.asarray(post_id_N, np.int64), np.asarray(channel_id_N, np.int64)
        new_N = self.rows(post_id_N) < 0
        count = int(new_N.sum())
        order_P = np.argsort(np.r_[self.post_id_P, post_id_N[new_N]], kind="stable")
        self.post_id_P = np.r_[self.post_id_P, post_id_N[new_N]][order_P]
        self.channel_id_P = np.r_[self.channel_id_P, channel_id_N[new_N]][order_P]
        self.all_P = np.r_[self.all_P, np.zeros(count)][order_P]
        self.city_PC = np.concatenate([self.city_PC, np.zeros((count, len(self.cities)))])[order_P]
        self._grow_channels(channel_id_N)

    def city_code(self, city: str | None) -> int:
        """Column of a city, -1 when unknown."""
        return self._city_code.get(city, -1) if city is not None else -1

    def scores(self, row_N: np.ndarray, city_code: int, now: int, settings: PopularSettings,
               taste_share_N: np.ndarray | None = None) -> np.ndarray:  # fmt: skip
        """Score (N,) of posts in rows `row_N` (-1: nothing known, score 0) for a viewer of that city.

        everybody + city_weight x same city + channel_weight x channel, times 1 + topic_weight x the viewer's share of
        taste in the post's topic. Where the city has nothing the order is everybody's; where the post has nothing, its
        channel's.
        """
        known_N = np.asarray(row_N) >= 0
        row_N = np.where(known_N, row_N, 0)
        if not len(self.all_P):
            return np.zeros(len(row_N))
        score_N = self.all_P[row_N] + settings.channel_weight * self.channel_H[self.channel_P[row_N]]
        if city_code >= 0:
            score_N = score_N + settings.city_weight * self.city_PC[row_N, city_code]
        if taste_share_N is not None:
            score_N = score_N * (1.0 + settings.topic_weight * np.asarray(taste_share_N, np.float64))
        return np.where(known_N, score_N, 0.0) * np.exp2(-(now - self.anchor) / self.half_life_us)

    def _move_anchor(self, anchor: int) -> None:
        factor = np.exp2(-(anchor - self.anchor) / self.half_life_us)
        self.all_P *= factor
        self.city_PC *= factor
        self.channel_H *= factor
        self.anchor = anchor


def rank_popular(posts: PostColumns, score_N: np.ndarray, n: int) -> Ranked:
    """The `n` posts with the highest score of `PopularCounts.scores`; posts without any engagement are left out."""
    engaged_M = np.flatnonzero(np.asarray(score_N) > 0)
    return top(posts.take(engaged_M), np.asarray(score_N, np.float64)[engaged_M], n)
