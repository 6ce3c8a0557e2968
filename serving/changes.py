"""Rows of the lake's tables as changes of serving state: the same functions for the log, replay and live events."""

from collections.abc import Iterator

from contracts.clock import SECOND
from contracts.served import FOREVER, Document
from contracts.tables import BLOCK_KINDS
from serving.store.families import BLOCK, FRIEND, POST, SEEN, key
from serving.store.packing import FRIEND_CODE, Profile, pack, pack_record
from serving.store.protocol import Append, Mutation, Put

INCOMING = 8
"""Added to a block's code in the record that the other person holds."""
BLOCK_CODE = {kind: code for code, kind in enumerate(BLOCK_KINDS)}


def user_mutations(profile: Profile) -> Iterator[Mutation]:
    """A person, new or changed. The empty block list says "none", where an absent one would mean "not known"."""
    yield Put(key("user", profile.user_id), pack(profile))
    yield Append(key("blocks", profile.user_id), b"", BLOCK.at_column)


def friendship_mutations(
    user_id: int, friend_id: int, kind: str, since: int, ended_at: int = FOREVER
) -> Iterator[Mutation]:
    """A directed edge, new or (same kind and `since`) with its end."""
    code = FRIEND_CODE[kind]
    yield Append(key("friends", user_id), pack_record(friend_id, code, since, ended_at), FRIEND.at_column)
    yield Append(key("friends_of", friend_id), pack_record(user_id, code, since, ended_at), FRIEND.at_column)


def block_mutations(user_id: int, target_id: int, kind: str, since: int, ended_at: int = FOREVER) -> Iterator[Mutation]:
    """A block of any kind, new or (same kind and `since`) with its end; both people hold it."""
    code = BLOCK_CODE[kind]
    yield Append(key("blocks", user_id), pack_record(target_id, code, since, ended_at), BLOCK.at_column)
    yield Append(key("blocks", target_id), pack_record(user_id, code + INCOMING, since, ended_at), BLOCK.at_column)


def post_record(document: Document) -> bytes:
    """What the author's and the subject's list hold of a post."""
    return pack_record(
        document.post_id, document.author_id, document.channel_id, document.group_id, document.created_at
    )


def post_mutations(document: Document, live_us: int) -> Iterator[Mutation]:
    """A new post: its document, and its place in the lists, which lose posts older than `live_us` (us)."""
    yield Put(key("doc", document.post_id), pack(document))
    horizon = document.known_at - live_us
    yield Append(key("by_author", document.author_id), post_record(document), POST.at_column, horizon)
    if document.channel_id != document.author_id:
        yield Append(key("by_channel", document.channel_id), post_record(document), POST.at_column, horizon)


def seen_mutation(user_id: int, post_id: int, shown_at: int, live_us: int, family: str = "seen") -> Append:
    """A post was shown. What was shown longer than `live_us` (us) ago is forgotten, as such posts are too old to return."""
    expire_s = 1 + live_us // SECOND if family == "served" else 0
    return Append(key(family, user_id), pack_record(post_id, shown_at), SEEN.at_column, shown_at - live_us, expire_s)
