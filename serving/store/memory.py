"""The store in this process: the same bytes behind the same keys as in Redis; replay walks the log over it."""

import struct
from collections.abc import Iterable, Mapping, Sequence

from serving.store.protocol import Append, Bump, Mutation, Put

_layouts = {width: struct.Struct(f"<{1 + width}d") for width in range(1, 33)}
_moment = struct.Struct("<q")


def bumped(value: bytes | None, bump: Bump) -> bytes:
    """The state after `bump`; see `Bump` for the formula."""
    layout = _layouts[bump.width]
    state = list(layout.unpack(value)) if value else [0.0] * (1 + bump.width)
    updated, at = state[0], float(bump.at)
    if at >= updated:
        elapsed = updated - at
        for slot, half_life in enumerate(bump.half_lives, 1):
            if state[slot]:
                state[slot] *= 2.0 ** (elapsed / half_life)
        for slot in bump.slots:
            state[1 + slot] += 1.0
        state[0] = at
    else:
        elapsed = at - updated
        for slot in bump.slots:
            state[1 + slot] += 2.0 ** (elapsed / bump.half_lives[slot])
    for slot in bump.latests:
        state[1 + slot] = max(state[1 + slot], at)
    return layout.pack(*state)


def appended(value: bytes | None, append: Append) -> bytes:
    """The records after `append`."""
    if not value:
        return append.record
    start, width = 0, len(append.record)
    if append.horizon:
        offset = 8 * append.at_column
        while start < len(value) and _moment.unpack_from(value, start + offset)[0] < append.horizon:
            start += width
    return value[start:] + append.record if start else value + append.record


class MemoryStore:
    """A dict. Not for several threads that write."""

    def __init__(self, values: Mapping[bytes, bytes] | None = None, version: str = "memory"):
        self.values: dict[bytes, bytes] = dict(values or {})
        self.version = version

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values, None for an absent key."""
        return list(map(self.values.get, keys))

    def set_many(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Replaces many values, for a snapshot."""
        self.values.update(items)

    def apply(self, mutations: Iterable[Mutation]) -> None:
        """Applies the mutations in order."""
        values = self.values
        for mutation in mutations:
            if isinstance(mutation, Bump):
                values[mutation.key] = bumped(values.get(mutation.key), mutation)
            elif isinstance(mutation, Append):
                values[mutation.key] = appended(values.get(mutation.key), mutation)
            else:
                assert isinstance(mutation, Put)
                values[mutation.key] = mutation.value
