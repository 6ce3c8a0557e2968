"""The sample table: one row per impression, features as of that moment, labels from closed windows."""

import pyarrow as pa

from contracts.features import FEATURES
from contracts.tables import TableSpec
from contracts.tasks import TASK_NAMES

SPLITS = ("train", "validation", "test", "")
"""Windows of the time split; "" for rows in a gap, which no model and no metric uses."""

SAMPLES = TableSpec(
    "samples",
    pa.schema(
        [
            pa.field("request_id", pa.int64(), nullable=False), pa.field("user_id", pa.int64(), nullable=False),
            pa.field("post_id", pa.int64(), nullable=False), pa.field("author_id", pa.int64(), nullable=False),
            pa.field("position", pa.int32(), nullable=False), pa.field("shown_at", pa.int64(), nullable=False),
            pa.field("requested_at", pa.int64(), nullable=False), pa.field("viewed", pa.bool_(), nullable=False),
            pa.field("policy", pa.string(), nullable=False), pa.field("propensity", pa.float64()),
            pa.field("split", pa.string(), nullable=False),
            pa.field("examination", pa.float64(), nullable=False), pa.field("keep_share", pa.float64(), nullable=False),
            *(pa.field(f"label_{task}", pa.int8()) for task in TASK_NAMES),
            *(pa.field(feature.name, pa.float64(), nullable=False) for feature in FEATURES),
        ]
    ),
    "shown_at",
    ("shown_at", "request_id", "position", "post_id"),
)  # fmt: skip
"""`label_*` is null where the log has no such task. Features are as of `requested_at` (when the feed was made), never
later. Rows whose attribution window [shown_at, shown_at + attribution_us) is not closed at the log's end are absent;
unviewed rows are kept with viewed = false: they are no negatives for a model, but replay needs them.
`examination`: probability that a row with viewed = true was looked at: 1 where the log says who looked, else the
estimate for its position. `keep_share`: probability with which such a row was kept when negatives were thinned out; a
model weighs the row by its inverse."""
