"""What the files do not hold, derived by rule: the feeds that users could have seen, and the shares that followed.

The slate is the most recent friends' posts and nothing else, so what a user did later never decides what counts as
shown. A request sits in the first half of its day and sees posts of earlier days only; posts sit in the second half.
"""

from dataclasses import dataclass

import numpy as np

from contracts.clock import DAY
from pipelines.sources.hetrec_posts import Posts, moments_in_half_day

POLICY = "derived:friends-recent"


@dataclass(frozen=True)
class Feed:
    """Requests (R,) in order of time with their candidates, impressions (I,) and actions (A,) as positions of posts."""

    request_user_R: np.ndarray
    requested_at_R: np.ndarray
    candidates_R: list[np.ndarray]
    shown_request_I: np.ndarray
    shown_post_I: np.ndarray
    shown_position_I: np.ndarray
    action_user_A: np.ndarray
    action_post_A: np.ndarray
    acted_at_A: np.ndarray
    empty_requests: int
    shares_shown: int


def derive_feed(posts: Posts, user_E: np.ndarray, friend_E: np.ndarray, *, slate_size: int, live_days: int) -> Feed:
    """Feeds and shares of all users; `user_E`, `friend_E` (E,) are directed friendships."""
    friends_of = _grouped(user_E, friend_E)
    posts_by = _grouped(posts.user_P, np.arange(len(posts.day_P)))
    nobody = np.zeros(0, dtype=np.int64)
    users: list[int] = []
    days: list[int] = []
    pools: list[np.ndarray] = []
    actions: list[tuple] = []
    empty = shown_shares = 0
    for user in sorted(posts_by):
        own = posts_by[user]
        walls = [posts_by[friend] for friend in friends_of.get(user, nobody).tolist() if friend in posts_by]
        wall = np.sort(np.concatenate(walls)) if walls else nobody  # positions of posts are in the order of time
        wall_day = posts.day_P[wall]
        tagged_before: set[int] = set()
        for day in np.unique(posts.day_P[own]):
            begin, end = np.searchsorted(wall_day, (day - live_days, day))
            pool = wall[begin:end][::-1]
            new = [p for p in own[posts.day_P[own] == day].tolist() if int(posts.artist_P[p]) not in tagged_before]
            tagged_before.update(posts.artist_P[new].tolist())
            if not len(pool):
                empty += 1
                continue
            users.append(user)
            days.append(day)
            pools.append(pool)
            followed = _followed(posts, pool, new)
            actions.extend((user, source, int(posts.created_at_P[own_post])) for own_post, source in followed)
            shown_shares += int(np.isin([source for _, source in followed], pool[:slate_size]).sum())
    return _in_order_of_time(users, days, pools, actions, slate_size, empty, shown_shares)


def _followed(posts: Posts, pool: np.ndarray, new: list[int]) -> list[tuple[int, int]]:
    """(own post, most recent friend's post of the same artist) for each of the `new` posts that has one in `pool`."""
    artists, first = np.unique(posts.artist_P[pool], return_index=True)  # the pool runs from the most recent back
    source_of = dict(zip(artists.tolist(), pool[first].tolist()))
    return [(own, source_of[artist]) for own in new if (artist := int(posts.artist_P[own])) in source_of]


def _in_order_of_time(
    users: list[int], days: list[int], pools: list[np.ndarray], actions: list[tuple[int, int, int]], slate_size: int,
    empty: int, shown_shares: int,
) -> Feed:  # fmt: skip
    user_R, day_R = np.array(users, dtype=np.int64), np.array(days, dtype=np.int64)
    requested_at_R = day_R * DAY + moments_in_half_day(user_R, day_R)
    order = np.lexsort((user_R, requested_at_R))
    candidates_R = [pools[i] for i in order]
    slates = [pool[:slate_size] for pool in candidates_R]
    sizes = np.array([len(slate) for slate in slates], dtype=np.int64)
    acted = np.array(sorted(actions, key=lambda action: (action[2], action[0], action[1])), dtype=np.int64).reshape(
        -1, 3
    )
    return Feed(
        request_user_R=user_R[order], requested_at_R=requested_at_R[order], candidates_R=candidates_R,
        shown_request_I=np.repeat(np.arange(len(order)), sizes),
        shown_post_I=np.concatenate(slates) if slates else np.zeros(0, dtype=np.int64),
        shown_position_I=np.concatenate([np.arange(n) for n in sizes]) if slates else np.zeros(0, dtype=np.int64),
        action_user_A=acted[:, 0], action_post_A=acted[:, 1], acted_at_A=acted[:, 2],
        empty_requests=empty, shares_shown=shown_shares,
    )  # fmt: skip


def _grouped(key_N: np.ndarray, value_N: np.ndarray) -> dict[int, np.ndarray]:
    """Values by key, each group in the order of `value_N`."""
    order = np.argsort(key_N, kind="stable")
    keys, first = np.unique(key_N[order], return_index=True)
    return dict(zip(keys.tolist(), np.split(value_N[order], first[1:])))
