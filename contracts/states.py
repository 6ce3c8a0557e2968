"""Feature state as of a moment: one table per counter family; the nightly batch writes it, publish and replay load it."""

import pyarrow as pa

from contracts.features import FAMILIES, Family
from contracts.tables import TableSpec


def state_table(family: Family) -> TableSpec:
    """Rows (as_of, key columns…, values list<float64>): decayed counters as of `as_of`, then latests (UTC us).

    Only events with known_at < as_of count. Keys with no event are absent. A moment is one partition day, so moments
    written together lie on different UTC days.
    """
    keys = [pa.field(name, pa.int32() if name == "topic" else pa.int64(), nullable=False) for name in family.key]
    schema = pa.schema(
        [
            pa.field("as_of", pa.int64(), nullable=False),
            *keys,
            pa.field("values", pa.list_(pa.float64()), nullable=False),
        ]
    )
    return TableSpec(f"state_{family.name}", schema, "as_of", ("as_of", *family.key))


STATES = {name: state_table(family) for name, family in FAMILIES.items()}
