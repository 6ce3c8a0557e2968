"""The online updater: one event of the contract into the changes of serving state, driven by the declared families."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from contracts.features import FAMILIES, Family
from contracts.tables import ACTION_KINDS
from contracts.tasks import ENGAGEMENTS
from serving.store.families import ENGAGER, SEEN, key
from serving.store.packing import pack_record
from serving.store.protocol import Append, Bump, Mutation

ENGAGEMENT_CODE = {kind: ACTION_KINDS.index(kind) for kind in ENGAGEMENTS}
HIDING = ("hide", "report")


@dataclass(frozen=True, slots=True)
class Event:
    """A row of `contracts.events.EVENT_SCHEMA`; moments in UTC microseconds."""

    kind: str
    user_id: int
    author_id: int
    post_id: int
    topic: int
    occurred_at: int
    known_at: int


@dataclass(frozen=True, slots=True)
class _Target:
    name: str
    columns: tuple[str, ...]
    slots: tuple[int, ...]
    latests: tuple[int, ...]
    half_lives: tuple[float, ...]
    width: int


@cache
def _targets(kind: str) -> tuple[_Target, ...]:
    """What an event of `kind` moves, in every declared family."""
    return tuple(target for family in FAMILIES.values() if (target := _target(family, kind)) is not None)


def _target(family: Family, kind: str) -> _Target | None:
    slots = tuple(slot for slot, counter in enumerate(family.counters) if kind in counter.kinds)
    latests = tuple(family.slot(latest.name) for latest in family.latests if kind in latest.kinds)
    if not slots and not latests:
        return None
    half_lives = tuple(float(counter.half_life_us) for counter in family.counters)
    return _Target(family.name, family.key, slots, latests, half_lives, family.width)


def event_mutations(event: Event) -> Iterator[Mutation]:
    """What `event` changes: its counters; for a like, comment or share the post's engagers; for a hide what is hidden."""
    for target in _targets(event.kind):
        bare = key(target.name, *(getattr(event, column) for column in target.columns))
        yield Bump(bare, event.occurred_at, target.slots, target.latests, target.half_lives, target.width)
    if event.kind in ENGAGEMENT_CODE:
        record = pack_record(event.user_id, ENGAGEMENT_CODE[event.kind], event.occurred_at)
        yield Append(key("engagers", event.post_id), record, ENGAGER.at_column)
    if event.kind in HIDING:
        record = pack_record(event.post_id, event.occurred_at)
        yield Append(key("hidden", event.user_id), record, SEEN.at_column)
