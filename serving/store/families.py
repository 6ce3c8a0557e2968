"""Every key family of the serving state, declared once: name, key layout, value, and what ends its life.

Keys here are bare (`tie:12:34`); a store puts the prefix of the published version, or of the live state, before them.
"""

from dataclasses import dataclass
from typing import Literal

from contracts.features import FAMILIES


@dataclass(frozen=True)
class KeyFamily:
    """`owner` "version": dies with the published version; "live": outlives versions and expires after a post's life.

    `guarded`: that a key is absent permits something, so that a key of another type must not pass for an absent one.
    """

    name: str
    layout: str
    value: str
    owner: Literal["version", "live"] = "version"
    guarded: bool = False


KEY_FAMILIES = {
    family.name: family
    for family in (
        *(
            KeyFamily(name, ":".join((name, *family.key)), "state: float64 updated_at (UTC us), counters, latests")
            for name, family in FAMILIES.items()
        ),
        KeyFamily("user", "user:user_id", "msgpack Profile"),
        KeyFamily("friends", "friends:user_id", "records FRIEND: whom the user has as friends, latest row wins"),
        KeyFamily("friends_of", "friends_of:user_id", "records FRIEND: who has the user as friend"),
        KeyFamily("blocks", "blocks:user_id", "records BLOCK, both directions; a known user always has one"),
        KeyFamily("doc", "doc:post_id", "msgpack Document"),
        KeyFamily("by_author", "by_author:author_id", "records POST, live posts of the author"),
        KeyFamily("by_channel", "by_channel:channel_id", "records POST, live posts about the subject"),
        KeyFamily("engagers", "engagers:post_id", "records ENGAGER: who liked, commented or shared"),
        KeyFamily("seen", "seen:user_id", "records SEEN: posts that the log says were shown", guarded=True),
        KeyFamily("hidden", "hidden:user_id", "records SEEN: posts that the user hid or reported", guarded=True),
        KeyFamily("subject", "subject:subject_id", "msgpack Named"),
        KeyFamily("list", "list:name", "users: int64 ids in order; topics: msgpack of topic -> name"),
        KeyFamily("served", "served:user_id", "records SEEN: posts that this service showed", "live", guarded=True),
    )
}
LIVE_PREFIXES = tuple(f"{family.name}:".encode() for family in KEY_FAMILIES.values() if family.owner == "live")
GUARDED_PREFIXES = tuple(f"{family.name}:".encode() for family in KEY_FAMILIES.values() if family.guarded)


@dataclass(frozen=True)
class Record:
    """Fixed-width int64 records, appended; `columns` in order, `at` the one that says how old a record is."""

    columns: tuple[str, ...]
    at: str

    @property
    def width(self) -> int:
        """int64 values per record."""
        return len(self.columns)

    @property
    def at_column(self) -> int:
        """Position of `at`."""
        return self.columns.index(self.at)


FRIEND = Record(("other_id", "kind", "since", "ended_at"), "since")
BLOCK = Record(("other_id", "code", "since", "ended_at"), "since")
POST = Record(("post_id", "author_id", "channel_id", "group_id", "created_at"), "created_at")
ENGAGER = Record(("user_id", "kind", "at"), "at")
SEEN = Record(("post_id", "at"), "at")


def key(family: str, *ids: int | str) -> bytes:
    """The bare key of `ids` in `family`."""
    return ":".join((family, *map(str, ids))).encode()
