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


def examined(table: pa.Table, found: Examination | None) -> pa.Table:
    """`table` plus `examination`: 1 where the log says who looked, as a viewed row was then looked at for certain."""
    values_N = np.ones(table.num_rows)
    if found is not None and found.method != "viewed":
        values_N = found.at(table["position"].to_numpy())
    return table.append_column("examination", pa.array(values_N))


def finished(table: pa.Table, found: Examination | None, settings: SampleSettings) -> pa.Table:
    """What of `table` is written: with both columns of this module, without the rows that chance leaves out."""
    return thinned(examined(table, found), settings)


def share_of_requests(table: pa.Table, share: float) -> pa.Table:
    """The rows of about `share` of the requests, chosen by a hash of their ids."""
    request_id_N = table["request_id"].to_numpy()
    return table.filter(pa.array(hash_array(request_id_N) / 2.0**64 < share))


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
