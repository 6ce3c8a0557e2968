"""What serving loads of recall: channel lists, popularity, viewer vectors, post index; numpy, FAISS, ONNX Runtime only.

Everything in here that holds posts holds public ones alone, so a post for friends, a list or nobody cannot come out of
it; friends' other posts come from the social and collaborative paths, over posts that the caller found visible.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from contracts.artifacts import Artifact
from recall.collaborative import ChannelLists
from recall.popular import ENGAGEMENT_WEIGHTS, POSTING_WEIGHT, PopularCounts, rank_popular
from recall.posts import NO_ID, PostColumns, Ranked, channel_ids, group_ids, top
from recall.settings import RecallSettings
from recall.vector import NewPost, PostTower, VectorIndex, content_matrix, kind_codes

SETTINGS_FILE, CHANNELS_FILE, POSTS_FILE = "settings.json", "channels.npz", "posts.npz"
VIEWERS_FILE, TOWER_FILE, INDEX_FILE = "viewers.npz", "post_tower.onnx", "posts.faiss"
SPARE = 4
"""The index is asked for this many times the wanted posts, since some are too old, own or doubles; again if too few."""


class RecallRuntime:
    """Recall as of publish, kept current by `add_posts`, `remove_post` and `record`. One thread may change it at a time."""

    def __init__(self, settings: RecallSettings, version: str, live_us: int, channels: ChannelLists, counts: PopularCounts,
                 viewer_id_U: np.ndarray, viewer_UD: np.ndarray, tower: PostTower, index: VectorIndex):  # fmt: skip
        self.settings, self.version, self.live_us = settings, version, live_us
        self._channels, self._counts, self._tower, self._index = channels, counts, tower, index
        self._viewer_id_U, self._viewer_UD = viewer_id_U, viewer_UD
        self._posts = PostColumns.empty()
        self._topic_N = np.zeros(0, np.int64)
        self._row: dict[int, int] = {}

    @classmethod
    def load(cls, artifact: Artifact) -> "RecallRuntime":
        """The runtime of a "recall" artifact; `BadInput` that names a file it lacks."""
        record = json.loads(artifact.file(SETTINGS_FILE).read_text())
        settings = RecallSettings(**record["settings"])
        with np.load(artifact.file(CHANNELS_FILE)) as file:
            channels = ChannelLists(file["user_id_U"], file["offset_U1"], file["channel_id_T"], file["score_T"])
        with np.load(artifact.file(VIEWERS_FILE)) as file:
            viewer_id_U, viewer_UD = file["user_id_U"], file["vector_UD"]
            tower = PostTower(artifact.file(TOWER_FILE), file["channel_id_H"], file["topic_T"], record["content_dim"])
        with np.load(artifact.file(POSTS_FILE)) as file:
            posts = PostColumns(*(file[name] for name in PostColumns.__dataclass_fields__))
            counts = PopularCounts(posts.post_id_N, posts.channel_id_N, tuple(record["cities"]),
                                   settings.popular.half_life_us, record["anchor"])  # fmt: skip
            counts.load_state(file["all_P"], file["city_PC"], file["channel_id_H"], file["channel_H"])
            topic_N, vector_ND = file["topic_N"], file["vector_ND"]
        index = VectorIndex.read(artifact.file(INDEX_FILE), posts.post_id_N, vector_ND, settings.vector.flat_below)
        runtime = cls(
            settings, artifact.version, record["live_us"], channels, counts, viewer_id_U, viewer_UD, tower, index
        )
        runtime._append(posts, topic_N)
        return runtime

    def channels(self, user_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Channel ids (C,) and scores (C,) of a viewer for `recall.collaborative.rank_collaborative`; empty when unknown."""
        return self._channels.of(user_id)

    def viewer_vector(self, user_id: int) -> np.ndarray:
        """The viewer's vector (D,); an unknown viewer gets the mean viewer's."""
        at = int(np.searchsorted(self._viewer_id_U, user_id))
        if at < len(self._viewer_id_U) and self._viewer_id_U[at] == user_id:
            return self._viewer_UD[at]
        return self._viewer_UD.mean(axis=0) if len(self._viewer_UD) else np.zeros(self._index.dim, np.float32)

    def search(self, user_id: int, now: int, n: int) -> Ranked:
        """The `n` public live posts nearest to the viewer's vector, not the viewer's own."""
        viewer_D, asked = self.viewer_vector(user_id), SPARE * n
        while True:
            post_id_K, score_K = self._index.search(viewer_D, asked)
            posts = self._posts.take(np.array([self._row[int(post_id)] for post_id in post_id_K], np.int64))
            kept_K = self._live(posts, now) & (posts.author_id_N != user_id)
            found = top(posts.take(kept_K), score_K[kept_K], n)
            if len(found) == n or len(post_id_K) < asked:
                return found
            asked *= SPARE

    def popular(self, user_id: int, now: int, n: int, city: str | None = None,
                taste_share: Mapping[int, float] | None = None) -> Ranked:  # fmt: skip
        """The `n` public live posts with most engagement for a viewer of that city, not the viewer's own.

        `taste_share`: topic -> the viewer's share of engagement in it (0 to 1).
        """
        kept_M = np.flatnonzero(self._live(self._posts, now) & (self._posts.author_id_N != user_id))
        posts = self._posts.take(kept_M)
        share_M = None
        if taste_share:
            share_M = np.array([taste_share.get(int(topic), 0.0) for topic in self._topic_N[kept_M]])
        row_M = self._counts.rows(posts.post_id_N)
        score_M = self._counts.scores(row_M, self._counts.city_code(city), now, self.settings.popular, share_M)
        return rank_popular(posts, score_M, n)

    def embed(self, posts: Sequence[NewPost]) -> np.ndarray:
        """Vectors (N, D) of posts by the post tower."""
        columns = self._columns(posts)
        content_NE = content_matrix([post.embedding for post in posts], self._tower.content_dim)
        topic_N = np.array([post.topic for post in posts], np.int64)
        return self._tower.embed(columns.channel_id_N, topic_N, kind_codes([post.kind for post in posts]), content_NE)

    def add_posts(self, posts: Sequence[NewPost]) -> None:
        """Makes new public posts retrievable at once; posts that are not public or already known are left out.

        So is a share whose original is not here: nobody can tell here whether that one is public.
        """
        public = {post.post_id: post for post in posts if post.visibility == "public"}
        new = [post for post_id, post in public.items() if post_id not in self._row
               and (post.root_post_id == NO_ID or post.root_post_id in self._row or post.root_post_id in public)]  # fmt: skip
        if new:
            columns = self._columns(new)
            self._index.add(columns.post_id_N, self.embed(new))
            self._counts.add_posts(columns.post_id_N, columns.channel_id_N)
            self._append(columns, np.array([post.topic for post in new], np.int64))
            about = np.array([post.subject_id != NO_ID for post in new])
            row_M = self._counts.rows(columns.post_id_N[about])
            self._counts.add(
                row_M, np.full(len(row_M), POSTING_WEIGHT), np.full(len(row_M), -1), columns.created_at_N[about]
            )

    def remove_post(self, post_id: int) -> None:
        """A deleted (or no longer public) post is in no answer from here on; unknown ids are no error."""
        row = self._row.get(post_id)
        if row is not None:
            self._index.remove(post_id)
            kept_N = np.arange(len(self._posts)) != row
            posts, topic_N = self._posts.take(kept_N), self._topic_N[kept_N]
            self._posts, self._topic_N, self._row = PostColumns.empty(), np.zeros(0, np.int64), {}
            self._append(posts, topic_N)

    def record(self, post_id: int, action: str, occurred_at: int, city: str | None = None) -> None:
        """Counts one action towards popularity; kinds that are no engagement, and unknown posts, change nothing."""
        weight = ENGAGEMENT_WEIGHTS.get(action)
        row_1 = self._counts.rows(np.array([post_id], np.int64))
        if weight is not None and row_1[0] >= 0:
            self._counts.add(
                row_1, np.array([weight]), np.array([self._counts.city_code(city)]), np.array([occurred_at])
            )

    def _live(self, posts: PostColumns, now: int) -> np.ndarray:
        return (posts.created_at_N <= now) & (posts.created_at_N > now - self.live_us)

    def _append(self, posts: PostColumns, topic_N: np.ndarray) -> None:
        for row, post_id in enumerate(posts.post_id_N.tolist(), start=len(self._posts)):
            self._row[post_id] = row
        self._posts = PostColumns.concatenate([self._posts, posts])
        self._topic_N = np.r_[self._topic_N, topic_N]

    @staticmethod
    def _columns(posts: Sequence[NewPost]) -> PostColumns:
        post_id_N, author_id_N, subject_id_N, root_N, created_at_N = (
            np.array([getattr(post, name) for post in posts], np.int64)
            for name in ("post_id", "author_id", "subject_id", "root_post_id", "created_at")
        )
        return PostColumns(post_id_N, author_id_N, channel_ids(author_id_N, subject_id_N),
                           group_ids(post_id_N, root_N, subject_id_N), created_at_N)  # fmt: skip
