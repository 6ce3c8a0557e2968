"""What a trainer must know of how the rows came to be: were they looked at, and were their like thinned out?"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from contracts.tasks import TASK_NAMES
from pipelines.samples.examination import Examination, SlateRows, estimate_examination
from pipelines.samples.settings import SampleSettings


def engaged(table: pa.Table) -> np.ndarray:
    """(N,) bool: an action of any task followed."""
    found_N = np.zeros(table.num_rows, bool)
    for task in TASK_NAMES:
        found_N |= pc.fill_null(pc.equal(table[f"label_{task}"], 1), False).to_numpy(zero_copy_only=False)
    return found_N


def slate_rows(table: pa.Table) -> SlateRows:
    """The rows of a sample table, as the estimate of examination wants them."""

    def column(name: str) -> np.ndarray:
        return table[name].to_numpy(zero_copy_only=False)

    return SlateRows(
        column("request_id"), column("user_id"), column("author_id"), column("position"), column("viewed"),
        engaged(table), column("propensity").astype(float), column,
    )  # fmt: skip


def with_examination(table: pa.Table) -> tuple[pa.Table, Examination | None]:
    """`table` plus `examination`, estimated on the training window alone.

    Where the log says who looked, a viewed row was looked at for certain. Impressions that an adapter derived were in
    nobody's feed: there is nothing to estimate, and the column is 1.
    """
    derived = pc.any(pc.starts_with(table["policy"], "derived")).as_py()
    train = table.filter(pc.equal(table["split"], "train"))
    found = None if derived else estimate_examination(slate_rows(train))
    values_N = np.ones(table.num_rows)
    if found is not None and found.method != "viewed":
        values_N = found.at(table["position"].to_numpy())
    return table.append_column("examination", pa.array(values_N)), found


def thinned(table: pa.Table, settings: SampleSettings) -> pa.Table:
    """`table` plus `keep_share`, without the training rows that chance leaves out.

    Only rows of the training window without any action are thinned out, each by a hash of its request and post, so that
    the same log keeps the same rows however it is ordered.
    """
    keep_share_N = np.ones(table.num_rows)
    if settings.keep_negatives < 1:
        in_train_N = pc.equal(table["split"], "train").to_numpy(zero_copy_only=False)
        keep_share_N[in_train_N & ~engaged(table)] = settings.keep_negatives
    kept_N = _uniform(table["request_id"].to_numpy(), table["post_id"].to_numpy(), settings.seed) < keep_share_N
    return table.append_column("keep_share", pa.array(keep_share_N)).filter(pa.array(kept_N))


def _uniform(request_id_N: np.ndarray, post_id_N: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) per row, from its ids alone."""
    return hash_array(hash_array(request_id_N + seed) ^ post_id_N.astype(np.uint64)) / 2.0**64
