"""Candidate pools: which posts a feed could have shown at each request, drawn from friends and from beyond.

Shapes: N requests (distinct viewers), R rows (one candidate of one request), M pool slots.
"""

import numpy as np

from simulator.environment.lookups import Graph, Shelf, expand, rank_within
from simulator.environment.posts import PUBLIC, Posts, Visibility
from simulator.environment.settings import EnvironmentSettings

DRAWS_BEYOND = 24
"""How many posts of strangers are tried per request, half from friends of friends, half from the popular."""
RECENCY_DAYS = 3.0
"""Age at which a friend's post is e times less likely to enter a pool that is too small for all."""


class Seen:
    """Which posts were shown to whom, for as long as they could be shown again: sorted keys, merged once a day."""

    def __init__(self, posts: int):
        self._posts = max(posts, 1)
        self._earlier = np.zeros(0, np.int64)
        self._today = np.zeros(0, np.int64)

    def __call__(self, user_R: np.ndarray, post_R: np.ndarray) -> np.ndarray:
        """Whether each viewer (R,) saw each post (R,)."""
        key_R = user_R * self._posts + post_R
        return _among(self._earlier, key_R) | _among(self._today, key_R)

    def add(self, user_R: np.ndarray, post_R: np.ndarray) -> None:
        """Marks pairs as seen."""
        self._today = np.sort(np.concatenate([self._today, user_R * self._posts + post_R]), kind="stable")

    def end_day(self, oldest_post: int) -> None:
        """Forgets what was shown of posts before `oldest_post` (indices follow creation): no pool takes them any more."""
        keys = np.sort(np.concatenate([self._earlier, self._today]), kind="stable")
        self._earlier, self._today = keys[keys % self._posts >= oldest_post], np.zeros(0, np.int64)


def _among(sorted_keys: np.ndarray, key_R: np.ndarray) -> np.ndarray:
    if not len(sorted_keys):
        return np.zeros(len(key_R), bool)
    return sorted_keys[np.minimum(np.searchsorted(sorted_keys, key_R), len(sorted_keys) - 1)] == key_R


class PoolMaker:
    """Draws pools for requests of distinct viewers."""

    def __init__(self, settings: EnvironmentSettings, graph: Graph, posts: Posts):
        self.settings, self.graph, self.posts = settings, graph, posts
        self.shelf = Shelf(posts.author_P, posts.created_at_P)
        self.visibility = Visibility(graph, posts)
        self.seen = Seen(len(posts.author_P))
        self._from_friends = max(round(settings.friend_share * settings.pool_size), 1)

    def _fits(self, user_R: np.ndarray, post_R: np.ndarray, at_R: np.ndarray) -> np.ndarray:
        posts = self.posts
        fit_R = (posts.created_at_P[post_R] > at_R - self.settings.live_us) & (posts.known_at_P[post_R] < at_R)
        fit_R &= posts.deleted_at_P[post_R] > at_R
        left_R = np.flatnonzero(fit_R)
        fit_R[left_R] = ~self.seen(user_R[left_R], post_R[left_R])
        return fit_R

    def _friends_rows(
        self, rng: np.random.Generator, user_N: np.ndarray, at_N: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Live, unseen, visible posts of friends: request (R,) and post (R,); more recent ones are drawn more often."""
        graph, posts = self.graph, self.posts
        query_R, edge_R = expand(*graph.edge_range(user_N))
        friend_R = graph.edges.friend_E[edge_R]
        usable_R = graph.active(edge_R, at_N[query_R]) & ~graph.hidden(user_N[query_R], friend_R, at_N[query_R])
        query_R, friend_R = query_R[usable_R], friend_R[usable_R]
        of_R, place_R = expand(*self.shelf.between(friend_R, at_N[query_R] - self.settings.live_us, at_N[query_R]))
        request_R, post_R = query_R[of_R], self.shelf.post_P[place_R]
        fit_R = self._fits(user_N[request_R], post_R, at_N[request_R])
        request_R, post_R = request_R[fit_R], post_R[fit_R]
        age_R = (at_N[request_R] - posts.created_at_P[post_R]) / 86_400e6
        order_R = np.lexsort((rng.exponential(1.0, len(post_R)) * np.exp(age_R / RECENCY_DAYS), request_R))
        request_R, post_R = request_R[order_R], post_R[order_R]
        near_R = rank_within(request_R) < 2 * self._from_friends
        request_R, post_R = request_R[near_R], post_R[near_R]
        visible_R = self.visibility.whole(user_N[request_R], post_R, at_N[request_R])
        request_R, post_R = request_R[visible_R], post_R[visible_R]
        kept_R = rank_within(request_R) < self._from_friends
        return request_R[kept_R], post_R[kept_R]

    def _beyond_rows(
        self,
        rng: np.random.Generator,
        user_N: np.ndarray,
        at_N: np.ndarray,
        popular_P: np.ndarray,
        weight_P: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Public posts of people who are no friends: of friends of friends, and popular ones (weights cumulated)."""
        graph, posts = self.graph, self.posts
        request_R = np.repeat(np.arange(len(user_N)), DRAWS_BEYOND // 2)
        friend_R = self._random_friend(rng, user_N[request_R])
        second_R = np.where(friend_R >= 0, self._random_friend(rng, np.maximum(friend_R, 0)), -1)
        near_R = self.shelf.pick(rng, np.maximum(second_R, 0), at_N[request_R] - self.settings.live_us, at_N[request_R])
        near_R = np.where(second_R >= 0, near_R, -1)
        if len(popular_P):
            at_R = np.searchsorted(weight_P, rng.random(len(request_R)) * weight_P[-1], side="right")
            far_R = popular_P[np.minimum(at_R, len(popular_P) - 1)]
        else:
            far_R = np.full(len(request_R), -1)
        request_R, post_R = np.concatenate([request_R, request_R]), np.concatenate([near_R, far_R])
        request_R, post_R = request_R[post_R >= 0], post_R[post_R >= 0]
        user_R, at_R, author_R = user_N[request_R], at_N[request_R], posts.author_P[post_R]
        edge_R = graph.edge_of(user_R, author_R)
        friends_R = (
            (edge_R >= 0) & graph.active(np.maximum(edge_R, 0), at_R)
            if len(graph.edges.user_E)
            else np.zeros(len(user_R), bool)
        )
        fit_R = (
            (posts.visibility_P[post_R] == PUBLIC)
            & (author_R != user_R)
            & ~friends_R
            & self._fits(user_R, post_R, at_R)
        )
        request_R, post_R = request_R[fit_R], post_R[fit_R]
        visible_R = self.visibility.whole(user_N[request_R], post_R, at_N[request_R])
        key_R = np.sort(request_R[visible_R] * len(posts.author_P) + post_R[visible_R])
        key_R = key_R[np.diff(key_R, prepend=-1) > 0]
        request_R, post_R = key_R // max(len(posts.author_P), 1), key_R % max(len(posts.author_P), 1)
        order_R = np.lexsort((rng.random(len(post_R)), request_R))
        return request_R[order_R], post_R[order_R]

    def end_day(self, day_end_at: int) -> None:
        """Forgets what no pool of a later day can hold."""
        self.seen.end_day(int(np.searchsorted(self.posts.created_at_P, day_end_at - self.settings.live_us)))

    def _random_friend(self, rng: np.random.Generator, user_R: np.ndarray) -> np.ndarray:
        low_R, high_R = self.graph.edge_range(user_R)
        if not len(self.graph.edges.user_E):
            return np.full(len(user_R), -1)
        at_R = low_R + np.floor(rng.random(len(user_R)) * np.maximum(high_R - low_R, 1)).astype(np.int64)
        return np.where(
            high_R > low_R, self.graph.edges.friend_E[np.minimum(at_R, len(self.graph.edges.friend_E) - 1)], -1
        )

    def pools(
        self,
        rng: np.random.Generator,
        user_N: np.ndarray,
        at_N: np.ndarray,
        popular_P: np.ndarray,
        weight_P: np.ndarray,
    ) -> np.ndarray:
        """Pools (N, M) of post indices in ascending order, so that order says nothing; -1 past the pool's end."""
        size = self.settings.pool_size
        friend_request_R, friend_post_R = self._friends_rows(rng, user_N, at_N)
        other_request_R, other_post_R = self._beyond_rows(rng, user_N, at_N, popular_P, weight_P)
        friends_N = np.bincount(friend_request_R, minlength=len(user_N))
        room_N = np.maximum(size - self._from_friends, self.settings.slate_size - friends_N)
        kept_R = rank_within(other_request_R) < room_N[other_request_R]
        request_R = np.concatenate([friend_request_R, other_request_R[kept_R]])
        post_R = np.concatenate([friend_post_R, other_post_R[kept_R]])
        order_R = np.lexsort((post_R, request_R))
        request_R, post_R = request_R[order_R], post_R[order_R]
        pools_NM = np.full((len(user_N), size), -1)
        pools_NM[request_R, rank_within(request_R)] = post_R
        return pools_NM
