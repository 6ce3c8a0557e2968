"""Foreign ids into the lake's numbers, one numbering per kind of thing, and the map back."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import BadInput
from contracts.tables import TABLES
from pipelines.sources.conversion import WHOLE_ID
from pipelines.sources.mapping import ID_KINDS, Log


class Identities:
    """Per kind, the foreign ids (text) and their numbers. Equal foreign ids of a kind have the same number."""

    def __init__(self, log: Log, tables: dict[str, pa.Table]):
        self.foreign: dict[str, pa.Array] = {}
        self.numbers: dict[str, np.ndarray] = {}
        for kind in sorted(set(ID_KINDS.values())):
            parts = [column for name in TABLES if name in tables for column in _of_kind(tables[name], kind)]
            foreign = (
                pc.unique(pa.chunked_array(parts, pa.string())).drop_null() if parts else pa.array([], pa.string())
            )
            self.foreign[kind] = foreign
            own = kind in log.number_ids
            self.numbers[kind] = _own_numbers(foreign, kind) if own else np.arange(1, len(foreign) + 1)

    def numbered(self, name: str, table: pa.Table) -> pa.Table:
        """`table`, named `name`, with numbers for foreign ids."""
        for column, kind in ID_KINDS.items():
            if column not in table.column_names:
                continue
            dtype = TABLES[name].schema.field(column).type
            values = table[column].combine_chunks()
            if pa.types.is_list(dtype):
                made = pa.ListArray.from_arrays(values.offsets, self._numbers_of(values.values, kind, pa.int64()),
                                                mask=values.is_null())  # fmt: skip
            else:
                made = self._numbers_of(values, kind, dtype)
            table = table.set_column(table.column_names.index(column), column, made)
        return table

    def _numbers_of(self, foreign: pa.Array, kind: str, dtype: pa.DataType) -> pa.Array:
        at = pc.index_in(foreign, value_set=self.foreign[kind])
        return pa.array(self.numbers[kind]).take(at).cast(dtype)

    def add(self, kind: str, foreign: list[str]) -> np.ndarray:
        """New numbers for things that the files do not name; `foreign` says what they are in the map."""
        first = 1 + int(self.numbers[kind].max(initial=0))
        made = np.arange(first, first + len(foreign))
        self.foreign[kind] = pa.concat_arrays([self.foreign[kind], pa.array(foreign, pa.string())])
        self.numbers[kind] = np.r_[self.numbers[kind], made]
        return made

    def table(self) -> pa.Table:
        """(kind, id, foreign), ordered by kind and id."""
        kinds = [kind for kind, numbers in self.numbers.items() for _ in range(len(numbers))]
        whole = pa.table({
            "kind": pa.array(kinds, pa.string()), "id": pa.array(np.concatenate(list(self.numbers.values()))),
            "foreign": pa.chunked_array(list(self.foreign.values()), pa.string()),
        })  # fmt: skip
        return whole.sort_by([("kind", "ascending"), ("id", "ascending")])


def _of_kind(table: pa.Table, kind: str) -> list[pa.Array]:
    columns = [table[name] for name, one in ID_KINDS.items() if one == kind and name in table.column_names]
    return [
        chunk
        for column in columns
        for chunk in (pc.list_flatten(column) if pa.types.is_list(column.type) else column).chunks
    ]


def _own_numbers(foreign: pa.Array, kind: str) -> np.ndarray:
    good = pc.match_substring_regex(foreign, WHOLE_ID)
    if not pc.all(good, min_count=0).as_py():
        odd = foreign.filter(pc.invert(good))
        raise BadInput(
            f"{len(odd)} ids of kind {kind} are no whole numbers from 0 on, the first is {odd[0].as_py()!r}: "
            f"take {kind} out of number_ids, then they are numbered from 1"
        )
    return foreign.cast(pa.int64()).to_numpy()
