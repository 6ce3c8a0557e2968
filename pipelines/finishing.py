"""What an executor makes of the rows of a sample file before it writes them: the last columns, without thinned rows.

A worker of Spark imports this module alone, and not all that the samples are planned and estimated with.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from contracts.tasks import TASK_NAMES


def finished(table: pa.Table, curve_K: np.ndarray | None, keep_negatives: float, seed: int) -> pa.Table:
    """What of `table` is written: with `examination` and `keep_share`, without the rows that chance leaves out."""
    return thinned(examined(table, curve_K), keep_negatives, seed)


def engaged(table: pa.Table) -> np.ndarray:
    """(N,) bool: an action of any task followed."""
    found_N = np.zeros(table.num_rows, bool)
    for task in TASK_NAMES:
        found_N |= pc.fill_null(pc.equal(table[f"label_{task}"], 1), False).to_numpy(zero_copy_only=False)
    return found_N


def examined(table: pa.Table, curve_K: np.ndarray | None) -> pa.Table:
    """`table` plus `examination`, by position; 1 without a curve, as a viewed row was then looked at for certain."""
    values_N = np.ones(table.num_rows)
    if curve_K is not None:
        values_N = curve_K[np.minimum(table["position"].to_numpy(), len(curve_K) - 1)]
    return table.append_column("examination", pa.array(values_N))


def thinned(table: pa.Table, keep_negatives: float, seed: int) -> pa.Table:
    """`table` plus `keep_share`, without the training rows that chance leaves out.

    Only rows of the training window without any action are thinned out, each by a hash of its request and post, so that
    the same log keeps the same rows however it is ordered.
    """
    keep_share_N = np.ones(table.num_rows)
    if keep_negatives < 1:
        in_train_N = pc.equal(table["split"], "train").to_numpy(zero_copy_only=False)
        keep_share_N[in_train_N & ~engaged(table)] = keep_negatives
    kept_N = _uniform(table["request_id"].to_numpy(), table["post_id"].to_numpy(), seed) < keep_share_N
    return table.append_column("keep_share", pa.array(keep_share_N)).filter(pa.array(kept_N))


def _uniform(request_id_N: np.ndarray, post_id_N: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) per row, from its ids alone."""
    return hash_array(hash_array(request_id_N + seed) ^ post_id_N.astype(np.uint64)) / 2.0**64


def share_of_requests(table: pa.Table, share: float) -> pa.Table:
    """The rows of about `share` of the requests, chosen by a hash of their ids."""
    request_id_N = table["request_id"].to_numpy()
    return table.filter(pa.array(hash_array(request_id_N) / 2.0**64 < share))
