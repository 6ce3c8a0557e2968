"""What candidates are: their documents with the whole chain of originals, and all model features in one round trip.

Shapes: N candidates, F model inputs, P recall paths.
"""

import contextlib

import numpy as np

from contracts.features import FEATURES, assemble
from contracts.served import NO_ID, Document
from contracts.tables import VISIBILITIES
from recall.posts import Ranked
from serving.features.hydrate import FeatureReader, PostFacts
from serving.feed.candidates import PATHS, Candidates, Run
from serving.store.families import key
from serving.store.packing import unpack_document
from serving.store.protocol import Store, Unreadable

_PUBLIC = VISIBILITIES.index("public")


def read_documents(store: Store, post_ids: list[int]) -> dict[int, Document]:
    """The documents of posts and of all they go back to, in at most two round trips; those not found or not readable are absent."""
    found = _read(store, dict.fromkeys(post_ids))
    ancestors = {post_id: None for document in found.values() for post_id, _ in document.chain if post_id != NO_ID}
    found.update(_read(store, {post_id: None for post_id in ancestors if post_id not in found}))
    return found


def _read(store: Store, wanted: dict[int, None]) -> dict[int, Document]:
    values = store.get_many([key("doc", post_id) for post_id in wanted]) if wanted else []
    found = {}
    for post_id, value in zip(wanted, values):
        with contextlib.suppress(Unreadable):
            if value is not None:
                found[post_id] = unpack_document(value)
    return found


class Documents:
    """Adds each post's document and its chain's; a post without a document is left out by the first filter."""

    name = "documents"
    reads = ("post_id",)
    adds = ("document", "chain", "author_id", "root_author_id", "channel_id", "group_id", "created_at", "topic", "kind")

    def hydrate(self, run: Run, candidates: Candidates) -> Candidates:
        wanted = candidates["post_id"].tolist()
        documents = read_documents(run.store, wanted)
        return _with_documents(candidates, [documents.get(post_id) for post_id in wanted], documents)

    def defaults(self, run: Run, candidates: Candidates) -> Candidates:
        return _with_documents(candidates, [None] * len(candidates), {})


def _with_documents(candidates: Candidates, found: list, documents: dict[int, Document]) -> Candidates:
    count = len(found)
    document_N, chain_N = np.empty(count, object), np.empty(count, object)
    document_N[:] = found
    fields = np.full((7, count), NO_ID, np.int64)
    for row, one in enumerate(found):
        if one is not None:
            chain_N[row] = tuple(documents.get(post_id) for post_id, _ in one.chain)
            fields[:, row] = (
                one.author_id,
                one.root[1],
                one.channel_id,
                one.group_id,
                one.created_at,
                one.topic,
                one.kind,
            )
    names = ("author_id", "root_author_id", "channel_id", "group_id", "created_at", "topic", "kind")
    return candidates.adding(document=document_N, chain=chain_N, **dict(zip(names, fields)))


class Features:
    """Adds the models' inputs; without the store, the declared defaults and what the documents say."""

    name = "features"
    reads = ("post_id", "author_id", "topic", "created_at", "kind", "document")
    adds = ("inputs_NF",)

    def hydrate(self, run: Run, candidates: Candidates) -> Candidates:
        columns = FeatureReader(run.store).read(
            run.query.now, run.viewer.profile, run.query.user_id, run.viewer.friends_RW, _facts(candidates)
        )
        return candidates.adding(inputs_NF=assemble(columns))

    def defaults(self, run: Run, candidates: Candidates) -> Candidates:
        columns = {feature.name: np.full(len(candidates), feature.default) for feature in FEATURES}
        columns["post_age_hours"] = np.maximum(0, run.query.now - candidates["created_at"]) / 3.6e9
        columns["post_kind"], columns["post_topic"] = candidates["kind"], candidates["topic"]
        return candidates.adding(inputs_NF=assemble(columns))


def _facts(candidates: Candidates) -> PostFacts:
    documents: list[Document] = candidates["document"].tolist()
    return PostFacts(
        post_id_N=candidates["post_id"], author_id_N=candidates["author_id"], topic_N=candidates["topic"],
        created_at_N=candidates["created_at"], kind_N=candidates["kind"],
        is_public_N=np.array([one.visibility == _PUBLIC for one in documents], bool),
        is_share_N=np.array([bool(one.chain) for one in documents], bool),
    )  # fmt: skip


def gathered(ranked: dict[str, Ranked]) -> Candidates:
    """One row per distinct post of all paths, in the order of post ids, with who brought it."""
    ids = [np.asarray(part.posts.post_id_N, np.int64) for part in ranked.values()]
    post_id_N = np.unique(np.concatenate(ids)) if ids else np.zeros(0, np.int64)
    brought_NP = np.zeros((len(post_id_N), len(PATHS)), bool)
    for path, some in zip(ranked, ids):
        brought_NP[np.searchsorted(post_id_N, some), PATHS.index(path)] = True
    return Candidates({"post_id": post_id_N, "brought_NP": brought_NP})
