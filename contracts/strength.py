"""Learned tie strength: how likely a person is to contact a friend within the next week, as of a moment."""

import pyarrow as pa

from contracts.clock import DAY
from contracts.tables import TableSpec

AHEAD_US = 7 * DAY
"""How far ahead the strength looks, microseconds: contacts in [as_of, as_of + AHEAD_US) are what it predicts."""

TIE_STRENGTH = TableSpec(
    "tie_strength",
    pa.schema(
        [
            pa.field("as_of", pa.int64(), nullable=False), pa.field("user_id", pa.int64(), nullable=False),
            pa.field("friend_id", pa.int64(), nullable=False), pa.field("probability", pa.float64(), nullable=False),
        ]
    ),
    "as_of",
    ("as_of", "user_id", "friend_id"),
)  # fmt: skip
"""One row per friendship that was active as known at `as_of`: the probability that user_id does one of
`contracts.tasks.CONTACTS` to a post of friend_id within the week that begins there. A moment that could not be predicted
(no closed week before it to learn from) has no rows."""
