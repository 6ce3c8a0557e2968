"""How far down people look, estimated from the rows of the training window."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.finishing import engaged
from pipelines.samples.examination import Examination, SlateRows, estimate_examination


def slate_rows(table: pa.Table) -> SlateRows:
    """The rows of a sample table, as the estimate of examination wants them."""

    def column(name: str) -> np.ndarray:
        return table[name].to_numpy(zero_copy_only=False)

    return SlateRows(
        column("request_id"), column("user_id"), column("author_id"), column("position"), column("viewed"),
        engaged(table), column("propensity").astype(float), column,
    )  # fmt: skip


def examination_of(table: pa.Table) -> Examination | None:
    """How far down people look, estimated on the rows of the training window.

    Sums of floats hang on the order of the rows, so they are put in one first. Impressions that an adapter derived were in
    nobody's feed: there is nothing to estimate.
    """
    if _derived(table):
        return None
    return estimate_examination(
        slate_rows(table.sort_by([("request_id", "ascending"), ("position", "ascending"), ("post_id", "ascending")]))
    )


def features_must_tell(table: pa.Table) -> bool:
    """Whether `examination_of` these rows needs their features: the log does not say who looked."""
    return table.num_rows > 0 and not _derived(table) and pc.count_distinct(table["viewed"]).as_py() == 1


def _derived(table: pa.Table) -> bool:
    return bool(pc.any(pc.starts_with(table["policy"], "derived")).as_py())
