"""What a store can do: read many keys in one round trip, and apply a list of mutations as one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from contracts.errors import BadInput


class StoreDown(BadInput):
    """The store cannot be reached or has nothing published; the API answers 503."""


class Unreadable(StoreDown):
    """What lies under a key is not what its family says; a stage with a fallback goes on without it, all else is 503."""


@dataclass(frozen=True, slots=True)
class Put:
    """Replaces the value."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Append:
    """Adds one record at the end, and drops records at the front whose moment (`at_column`) is before `horizon` (us).

    `expire_s`: the whole key goes this many seconds after its last append; 0: never by itself. Memory keeps it.
    """

    key: bytes
    record: bytes
    at_column: int
    horizon: int = 0
    expire_s: int = 0


@dataclass(frozen=True, slots=True)
class Bump:
    """Adds weight 1 at moment `at` (us) to the counters of `slots`, and moves the latests of `latests` up to `at`.

    The state keeps decayed sums as of its newest event u: an event at e >= u decays the sums by (e - u) and adds 1, an
    event at e < u adds 2 ** (-(u - e) / half_life). So every order of the same events gives the same sums.
    `half_lives` (us) are those of all counters of the family, in order; latests come after them.
    """

    key: bytes
    at: int
    slots: tuple[int, ...]
    latests: tuple[int, ...]
    half_lives: tuple[float, ...]
    width: int


Mutation = Put | Append | Bump


class Store(Protocol):
    """Serving state: key -> bytes."""

    @property
    def version(self) -> str:
        """The published version that reads see."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values, None for an absent key, in one round trip. `StoreDown` when the store cannot be reached.

        `Unreadable` for a key of a guarded family that holds no value, since an absent one would open something.
        """

    def apply(self, mutations: Iterable[Mutation]) -> None:
        """All of the mutations or none."""
