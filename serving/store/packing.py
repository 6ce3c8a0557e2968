"""Values to bytes and back: packed records, decayed states, documents and profiles.

Shapes: N keys, R records over all of them, S = width of a state, W = width of a record.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from contracts.served import FOREVER, Document
from contracts.tables import FRIENDSHIP_KINDS, POST_KINDS, VISIBILITIES
from serving.store.families import Record
from serving.store.protocol import Unreadable

Struct = TypeVar("Struct", bound=msgspec.Struct)

KIND_CODE = {name: code for code, name in enumerate(POST_KINDS)}
VISIBILITY_CODE = {name: code for code, name in enumerate(VISIBILITIES)}
FRIEND_CODE = {name: code for code, name in enumerate(FRIENDSHIP_KINDS)}


class Profile(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is shown and compared of a person; "" where the log has no name or city."""

    user_id: int
    name: str
    city: str
    registered_at: int


class Named(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a subject is called; `url` is "" where there is none."""

    subject_id: int
    name: str
    kind: str
    url: str


_encoder = msgspec.msgpack.Encoder()
pack = _encoder.encode


def reader(shape: type[Struct]) -> Callable[[bytes], Struct]:
    """Bytes -> `shape`; what is none is `Unreadable`."""
    decode = msgspec.msgpack.Decoder(shape).decode

    def read(value: bytes) -> Struct:
        try:
            return decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise Unreadable(f"the store holds something that is no {shape.__name__}: publish again") from None

    return read


unpack_document = reader(Document)
unpack_named = reader(Named)
unpack_profile = reader(Profile)


def pack_record(*values: int) -> bytes:
    """One record."""
    return np.array(values, "<i8").tobytes()


def unpack_records(value: bytes | None, record: Record) -> np.ndarray:
    """The records (R, W) int64 of one key; none for an absent key. `Unreadable` for a part of a record."""
    if not value:
        return np.zeros((0, record.width), np.int64)
    if len(value) % (8 * record.width):
        raise Unreadable(f"the store holds {len(value)} bytes where records have {8 * record.width}: publish again")
    return np.frombuffer(value, "<i8").reshape(-1, record.width)


def unpack_many_records(values: Sequence[bytes | None], record: Record) -> tuple[np.ndarray, np.ndarray]:
    """The records (R, W) of N keys, and for each the index of its key (R,). `Unreadable` as in `unpack_records`."""
    bytes_each = 8 * record.width
    for value in values:
        if value and len(value) % bytes_each:
            unpack_records(value, record)
    owner_R = np.repeat(np.arange(len(values)), [len(value) // bytes_each if value else 0 for value in values])
    return unpack_records(b"".join(value for value in values if value), record), owner_R


def group_records(ids_R: np.ndarray, records_RW: np.ndarray) -> list[tuple[int, bytes]]:
    """(id, packed records) per distinct id (R,), the records of one id in the given order."""
    order_R = np.argsort(ids_R, kind="stable")
    ids_R, records_RW = ids_R[order_R], np.ascontiguousarray(records_RW[order_R], "<i8")
    starts = np.flatnonzero(np.r_[True, ids_R[1:] != ids_R[:-1]]) if len(ids_R) else np.zeros(0, np.int64)
    content, bytes_each = records_RW.tobytes(), 8 * records_RW.shape[1]
    ends = np.r_[starts[1:], len(ids_R)]
    return [
        (int(one), content[start * bytes_each : end * bytes_each])
        for one, start, end in zip(ids_R[starts], starts, ends)
    ]


def pack_states(as_of: int, values_NS: np.ndarray) -> list[bytes]:
    """State values of N keys, all as of one moment (UTC us)."""
    rows = np.concatenate([np.full((len(values_NS), 1), float(as_of)), values_NS], axis=1).astype("<f8")
    content, bytes_each = rows.tobytes(), 8 * rows.shape[1]
    return [content[at : at + bytes_each] for at in range(0, len(content), bytes_each)]


def unpack_states(values: Sequence[bytes | None], width: int) -> np.ndarray:
    """States (N, 1 + S): updated_at, then values; zeros for an absent key."""
    absent = bytes(8 * (1 + width))
    return np.frombuffer(b"".join([value or absent for value in values]), "<f8").reshape(len(values), 1 + width)


def latest_records(records_RW: np.ndarray, *key_columns: int) -> np.ndarray:
    """The last record of each distinct combination of `key_columns`: a later append replaces an earlier one."""
    if len(records_RW) < 2:
        return records_RW
    last = {tuple(row): at for at, row in enumerate(records_RW[:, key_columns].tolist())}
    return records_RW if len(last) == len(records_RW) else records_RW[sorted(last.values())]


def moment(value: int | None) -> int:
    """`value`, or FOREVER for None."""
    return FOREVER if value is None else int(value)
