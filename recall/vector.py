"""Vector recall: nearest posts to a viewer's vector, in a FAISS index that takes new posts and hides removed ones at once.

Shapes: N posts, D width of vectors, K ranked posts. Vectors have length 1, so the inner product is the cosine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contracts.tables import POST_KINDS
from recall.posts import NO_ID, PostColumns, Ranked, top


def rank_vector(posts: PostColumns, vector_ND: np.ndarray, viewer_D: np.ndarray, n: int) -> Ranked:
    """The `n` posts with the largest inner product with the viewer's vector, exactly; one post per group."""
    return top(posts, vector_ND @ viewer_D, n)


@dataclass(frozen=True)
class NewPost:
    """What recall needs to know of a post; `root_post_id` is the first post of a share's chain."""

    post_id: int
    author_id: int
    created_at: int
    kind: str
    topic: int
    visibility: str
    subject_id: int = NO_ID
    root_post_id: int = NO_ID
    embedding: Sequence[float] | None = None


class VectorIndex:
    """A FAISS index over post ids with tombstones: a removed post is gone from the next answer on.

    Deleting inside an index is slow (flat) or impossible (graphs); so removed ids are remembered, answers are fetched
    with that many spare places, and the index is rebuilt when more than `REBUILD_SHARE` of it is removed.
    """

    REBUILD_SHARE = 0.2

    def __init__(self, dim: int, flat_below: int):
        self.dim, self.flat_below = dim, flat_below
        self._vector_ND = np.zeros((0, dim), np.float32)
        self._post_id_N = np.zeros(0, np.int64)
        self.removed: set[int] = set()
        self._index: Any = None

    @classmethod
    def build(cls, post_id_N: np.ndarray, vector_ND: np.ndarray, flat_below: int) -> "VectorIndex":
        """Exact up to `flat_below` posts, inverted lists above."""
        built = cls(vector_ND.shape[1], flat_below)
        built._post_id_N = np.asarray(post_id_N, np.int64)
        built._vector_ND = np.ascontiguousarray(vector_ND, np.float32)
        built._fill()
        return built

    @classmethod
    def read(cls, path: Path, post_id_N: np.ndarray, vector_ND: np.ndarray, flat_below: int) -> "VectorIndex":
        """The index that `write` put at `path`, over the same posts and vectors."""
        import faiss

        loaded = cls(vector_ND.shape[1], flat_below)
        loaded._post_id_N, loaded._vector_ND = np.asarray(post_id_N, np.int64), np.asarray(vector_ND, np.float32)
        loaded._index = faiss.read_index(str(path))
        return loaded

    def write(self, path: Path) -> None:
        """Writes the FAISS index to `path`."""
        import faiss

        faiss.write_index(self._index, str(path))

    def _fill(self) -> None:
        import faiss

        count = len(self._post_id_N)
        inner: Any
        if count < self.flat_below:
            inner = faiss.IndexFlatIP(self.dim)
        else:
            lists = int(4 * np.sqrt(count))
            inner = faiss.index_factory(self.dim, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
            inner.train(self._vector_ND)
            inner.nprobe = max(8, lists // 16)
        self._index = faiss.IndexIDMap2(inner)
        if count:
            self._index.add_with_ids(self._vector_ND, self._post_id_N)

    def __len__(self) -> int:
        return len(self._post_id_N) - len(self.removed)

    def __contains__(self, post_id: int) -> bool:
        return post_id not in self.removed and bool((self._post_id_N == post_id).any())

    def add(self, post_id_N: np.ndarray, vector_ND: np.ndarray) -> None:
        """Adds posts; they are found by the next search. A post that is there, or was removed, stays as it is."""
        post_id_N = np.asarray(post_id_N, np.int64)
        new_N = ~np.isin(post_id_N, self._post_id_N)
        if new_N.any():
            vector_ND = np.ascontiguousarray(np.asarray(vector_ND, np.float32)[new_N])
            self._post_id_N = np.r_[self._post_id_N, post_id_N[new_N]]
            self._vector_ND = np.concatenate([self._vector_ND, vector_ND])
            self._index.add_with_ids(vector_ND, post_id_N[new_N])

    def remove(self, post_id: int) -> None:
        """Hides a post from the next search on; unknown ids are no error."""
        if post_id in self:
            self.removed.add(post_id)
            if len(self.removed) > self.REBUILD_SHARE * len(self._post_id_N):
                kept_N = ~np.isin(self._post_id_N, list(self.removed))
                self._post_id_N, self._vector_ND = self._post_id_N[kept_N], self._vector_ND[kept_N]
                self.removed = set()
                self._fill()

    def search(self, viewer_D: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Post ids (K,) and inner products (K,) of the nearest posts, K <= n, best first."""
        wanted = min(n + len(self.removed), len(self._post_id_N))
        if wanted == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        score_1K, post_id_1K = self._index.search(np.ascontiguousarray(viewer_D, np.float32)[None, :], wanted)
        kept_K = post_id_1K[0] >= 0
        if self.removed:
            kept_K &= ~np.isin(post_id_1K[0], list(self.removed))
        return post_id_1K[0][kept_K][:n], score_1K[0][kept_K][:n]


class PostTower:
    """The post side of the two-tower model in ONNX Runtime: embeds any post, also one of this second, without torch.

    Code 0 of every vocabulary stands for "unknown"; a new author's or subject's post still has its topic, kind, content.
    """

    def __init__(self, path: Path, channel_id_H: np.ndarray, topic_T: np.ndarray, content_dim: int):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.channel_id_H, self.topic_T, self.content_dim = channel_id_H, topic_T, content_dim

    def embed(self, channel_id_N: np.ndarray, topic_N: np.ndarray, kind_N: np.ndarray, content_NE: np.ndarray) -> np.ndarray:  # fmt: skip
        """Vectors (N, D) float32 of length 1; `kind_N` indexes `contracts.tables.POST_KINDS`."""
        feed = {
            "channel": codes(self.channel_id_H, channel_id_N), "topic": codes(self.topic_T, topic_N),
            "kind": np.asarray(kind_N, np.int64), "content": np.asarray(content_NE, np.float32),
        }  # fmt: skip
        return self._session.run(["vector"], feed)[0]


def codes(vocabulary_H: np.ndarray, value_N: np.ndarray) -> np.ndarray:
    """1 + position (N,) of each value in the sorted vocabulary, 0 for values that are not in it."""
    value_N = np.asarray(value_N, np.int64)
    if not len(vocabulary_H):
        return np.zeros(len(value_N), np.int64)
    at_N = np.minimum(np.searchsorted(vocabulary_H, value_N), len(vocabulary_H) - 1)
    return np.where(vocabulary_H[at_N] == value_N, at_N + 1, 0).astype(np.int64)


def kind_codes(kinds: Sequence[str]) -> np.ndarray:
    """Positions (N,) of post kinds in `contracts.tables.POST_KINDS`."""
    position = {kind: code for code, kind in enumerate(POST_KINDS)}
    return np.array([position[kind] for kind in kinds], np.int64)


def content_matrix(embeddings: Sequence[Sequence[float] | None], width: int) -> np.ndarray:
    """Content (N, E) float32 of posts: their embedding, zeros where a post has none or one of another width."""
    content_NE = np.zeros((len(embeddings), width), np.float32)
    for row, embedding in enumerate(embeddings):
        if embedding is not None and len(embedding) == width:
            content_NE[row] = embedding
    return content_NE
