"""Lake rows of posts and users as documents and profiles, with the whole chain of what a share or quote is of."""

import numpy as np
import pyarrow as pa

from contracts.lake import Lake
from contracts.served import NO_ID, Document
from contracts.tables import POSTS, USERS
from serving.store.packing import KIND_CODE, VISIBILITY_CODE, Profile, moment

_LONGEST_CHAIN = 32
_UNKNOWN = (NO_ID, NO_ID)
"""Ends a chain whose original nobody knows, so that a look-up fails and the post stays invisible."""


def read_documents(lake: Lake) -> list[Document]:
    """All posts of the lake, ordered by (known_at, created_at, post_id)."""
    posts = lake.read(POSTS).sort_by([(name, "ascending") for name in ("known_at", "created_at", "post_id")])
    column = {name: posts[name].to_pylist() for name in posts.column_names if name != "embedding"}
    chains = _chains(column["post_id"], column["author_id"], column["origin_post_id"])
    return [
        Document(post_id, author_id, chains.get(post_id, ()), created_at, known_at, moment(deleted_at),
                 KIND_CODE[kind], topic, VISIBILITY_CODE[visibility], NO_ID if subject_id is None else subject_id,
                 tuple(audience or ()), text or "", embedding)
        for post_id, author_id, created_at, known_at, deleted_at, kind, topic, visibility, subject_id, audience, text,
        embedding in zip(
            *(column[name] for name in ("post_id", "author_id", "created_at", "known_at", "deleted_at", "kind", "topic",
                                        "visibility", "subject_id", "audience", "text")),
            _packed_embeddings(posts["embedding"]),
        )
    ]  # fmt: skip


def read_profiles(lake: Lake) -> list[tuple[int, Profile]]:
    """(known_at, profile) of all rows of users, ordered by known_at."""
    users = lake.read(USERS, ["user_id", "registered_at", "city", "attributes", "known_at"])
    users = users.sort_by([("known_at", "ascending"), ("user_id", "ascending")])
    return [
        (row["known_at"], Profile(row["user_id"], dict(row["attributes"] or ()).get("name") or "", row["city"] or "",
                                  row["registered_at"]))
        for row in users.to_pylist()
    ]  # fmt: skip


def _chains(post_ids: list, authors: list, origins: list) -> dict[int, tuple[tuple[int, int], ...]]:
    author_of, origin_of = dict(zip(post_ids, authors)), dict(zip(post_ids, origins))
    chains = {}
    for post_id, origin in origin_of.items():
        if origin is None:
            continue
        chain: list[tuple[int, int]] = []
        while origin is not None:
            if origin not in author_of or len(chain) == _LONGEST_CHAIN:
                chain.append(_UNKNOWN)
                break
            chain.append((origin, author_of[origin]))
            origin = origin_of[origin]
        chains[post_id] = tuple(chain)
    return chains


def _packed_embeddings(column: pa.ChunkedArray) -> list[bytes]:
    """float32 bytes per row, empty where there is none."""
    packed: list[bytes] = []
    for chunk in column.chunks:
        content = np.asarray(chunk.values, "<f4").tobytes()
        offsets = (4 * np.asarray(chunk.offsets, np.int64)).tolist()
        present = chunk.is_valid().to_pylist()
        packed.extend(content[a:b] if there else b"" for a, b, there in zip(offsets, offsets[1:], present))
    return packed
