"""One viewer at one moment of the log: which posts could be shown, how strong the ties are, what the viewer likes.

Everything here uses only rows known before that moment. Shapes: V posts visible, F friends.
"""

from dataclasses import dataclass

import numpy as np

from contracts.features import FAMILIES
from contracts.tasks import ENGAGEMENTS
from recall.log import FRIENDS, LIST, PUBLIC, Contacts, RecallLog
from recall.settings import SocialSettings
from recall.social import tie_strength

_HALF_LIFE = {counter.name: counter.half_life_us for name in ("tie", "taste") for counter in FAMILIES[name].counters}


@dataclass(frozen=True)
class Ties:
    """The viewer's friends (F,), their strength, and whether the viewer ever contacted them."""

    friend_id_F: np.ndarray
    strength_F: np.ndarray
    contacted_F: np.ndarray


class Viewpoints:
    """Answers for any (viewer, moment) of one log."""

    def __init__(self, log: RecallLog, live_us: int):
        self.log, self.live_us = log, live_us
        positives = log.positives
        self._by_user_M = np.argsort(positives.user_id_M, kind="stable")
        self._user_M = positives.user_id_M[self._by_user_M]
        row_A, member_A = log.audience
        self._listed = set(zip(row_A.tolist(), member_A.tolist()))

    def visible(self, user_id: int, at: int) -> np.ndarray:
        """Rows (V,) of posts a viewer could be shown at `at`: live, known, not own, not deleted, and visible.

        Visible along the whole chain of origins: public, or for friends and the author is one, or for a list that the
        viewer is on; and no block between the two. Posts of which an impression is known are out; in a log of
        discoveries, posts about a subject that the viewer already posted about.
        """
        log = self.log
        first, last = np.searchsorted(log.posts.created_at_N, [at - self.live_us + 1, at + 1])
        rows = np.arange(first, last)
        rows = rows[
            (log.known_at_N[rows] < at) & (log.deleted_at_N[rows] > at) & (log.posts.author_id_N[rows] != user_id)
        ]
        if log.discoveries:
            mine = self.liked(user_id, at)
            mine = mine[log.positives.kind_M[mine] == "post"]
            owned = log.posts.group_id_N[log.positives.post_M[mine]]
            rows = rows[~np.isin(log.posts.group_id_N[rows], owned)]
        else:
            seen_user, seen_post, seen_known_at = log.seen
            span = slice(*np.searchsorted(seen_user, [user_id, user_id + 1]))
            rows = rows[~np.isin(rows, seen_post[span][seen_known_at[span] < at])]
        back, kind = log.friends_back.of(user_id, at)
        friends, hidden = np.unique(back[kind != "follow"]), self._hidden(user_id, at)
        allowed = self._allowed(rows, user_id, friends, hidden)
        for level in range(log.chain_NL.shape[1]):
            origin = log.chain_NL[rows, level]
            allowed &= (origin < 0) | self._allowed(np.maximum(origin, 0), user_id, friends, hidden)
            allowed &= (origin < 0) | (log.deleted_at_N[np.maximum(origin, 0)] > at)
        return rows[allowed]

    def ties(self, user_id: int, at: int, settings: SocialSettings) -> Ties:
        """The viewer's active friends and follows with `recall.social.tie_strength` from the log's contacts."""
        other, kind = self.log.friends.of(user_id, at)
        friend_F = np.unique(other)
        recent, lasting = (self._contacts(self.log.contacts, user_id, at, friend_F, days) for days in ("14d", "180d"))
        back = self._contacts(self.log.contacts_back, user_id, at, friend_F, "180d")
        mutual = np.array(
            [np.isin(np.unique(self.log.friends.of(int(friend), at)[0]), friend_F).sum() for friend in friend_F]
        )
        special = np.isin(friend_F, other[kind == "special_care"])
        return Ties(friend_F, tie_strength(recent, lasting, back, mutual, special, settings), lasting > 0)

    def liked(self, user_id: int, at: int) -> np.ndarray:
        """Rows of `log.positives` of a viewer, known before `at`, in that order."""
        rows = self._by_user_M[slice(*np.searchsorted(self._user_M, [user_id, user_id + 1]))]
        return rows[self.log.positives.known_at_M[rows] < at]

    def liked_later(self, user_id: int, start: int, end: int) -> np.ndarray:
        """Rows of `log.positives` of a viewer that happened in [start, end)."""
        rows = self._by_user_M[slice(*np.searchsorted(self._user_M, [user_id, user_id + 1]))]
        occurred_at = self.log.positives.occurred_at_M[rows]
        return rows[(occurred_at >= start) & (occurred_at < end)]

    def taste(self, user_id: int, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Topics (sorted) and the viewer's share of engagement in each, decayed as `taste.engaged_180d`."""
        rows = self.liked(user_id, at)
        rows = rows[np.isin(self.log.positives.kind_M[rows], ENGAGEMENTS)]
        age = at - self.log.positives.occurred_at_M[rows]
        topic, code = np.unique(self.log.topic_N[self.log.positives.post_M[rows]], return_inverse=True)
        amount = np.bincount(code, weights=np.exp2(-age / _HALF_LIFE["engaged_180d"]), minlength=len(topic))
        return topic, amount / max(amount.sum(), 1e-12)

    def _allowed(self, row: np.ndarray, user_id: int, friends: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        author, visibility = self.log.posts.author_id_N[row], self.log.visibility_N[row]
        allowed = visibility == PUBLIC
        near = np.isin(author, friends)
        allowed |= near & (visibility == FRIENDS)
        for at in np.flatnonzero(near & (visibility == LIST)):
            allowed[at] = (int(row[at]), user_id) in self._listed
        allowed |= author == user_id
        return allowed & ~np.isin(author, hidden)

    def _hidden(self, user_id: int, at: int) -> np.ndarray:
        """Authors whose posts a block keeps from the viewer."""
        target, kind = self.log.blocks.of(user_id, at)
        by, kind_by = self.log.blocks_back.of(user_id, at)
        return np.r_[target[kind != "deny_my_posts"], by[kind_by != "hide_their_posts"]]

    @staticmethod
    def _contacts(contacts: Contacts, user_id: int, at: int, friend_F: np.ndarray, days: str) -> np.ndarray:
        other, occurred_at = contacts.of(user_id, at)
        place = np.searchsorted(friend_F, other)
        known = place < len(friend_F)
        known[known] = friend_F[place[known]] == other[known]
        decayed = np.exp2(-(at - occurred_at[known]) / _HALF_LIFE[f"contacts_{days}"])
        return np.bincount(place[known], weights=decayed, minlength=len(friend_F))
