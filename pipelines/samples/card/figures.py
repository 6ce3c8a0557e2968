"""The numbers of a data card: counts, label rates by day, position and slice, features, drift, weights, delays.

Legend: N rows, B bins.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.clock import DAY, HOUR, days_of
from contracts.features import FEATURES
from contracts.lake import Lake
from contracts.tables import ACTIONS
from contracts.tasks import TASK_NAMES, TASKS
from pipelines.samples.examination import Examination

BINS = 10
"""Drift compares shares in the deciles of the earlier day."""
DRIFTED = 0.2
"""A population stability index from which a feature counts as drifted; the field's rule of thumb."""
_LEAST_SHARE = 1e-4


def figures(table: pa.Table, examination: Examination | None, lake: Lake, attribution_us: int) -> dict[str, Any]:
    """Everything the card says of `table`, JSON-able; a rate of a task that the log lacks, or of no rows, is None."""
    day_N = days_of(table["shown_at"].to_numpy())
    return {
        "rows": table.num_rows,
        "splits": {name: _part(table.filter(pc.equal(table["split"], name))) for name in ("train", "validation", "test")},
        "days": {str(day): _part(table.filter(pa.array(day_N == day))) for day in np.unique(day_N)},
        "positions": {
            str(at): _part(table.filter(pc.equal(table["position"], at)))
            for at in sorted(pc.unique(table["position"]).to_pylist())
        },
        "slices": {name: _part(table.filter(mask)) for name, mask in _slices(table).items()},
        "features": _features(table, day_N),
        "drift_days": [str(day) for day in np.unique(day_N)[-2:]],
        "propensity": _propensity(table),
        "examination": examination.as_dict() if examination else None,
        "delays": _delays(table, lake, attribution_us),
        "thinned": float(np.mean(table["keep_share"].to_numpy() < 1)) if table.num_rows else 0.0,
    }  # fmt: skip


def _part(table: pa.Table) -> dict[str, Any]:
    weight_N = 1.0 / table["keep_share"].to_numpy()
    viewed_N = table["viewed"].to_numpy(zero_copy_only=False)
    rates: dict[str, float | None] = {}
    for task in TASK_NAMES:
        label_N = table[f"label_{task}"].to_numpy(zero_copy_only=False).astype(float)
        known_N = np.isfinite(label_N)
        rates[task] = float(np.average(label_N[known_N], weights=weight_N[known_N])) if known_N.any() else None
    return {
        "rows": table.num_rows,
        "requests": pc.count_distinct(table["request_id"]).as_py(),
        "viewers": pc.count_distinct(table["user_id"]).as_py(),
        "viewed": float(np.average(viewed_N, weights=weight_N)) if len(viewed_N) else None,
        "rates": rates,
    }


def _slices(table: pa.Table) -> dict[str, pa.Array]:
    friend = pc.equal(table["is_friend"], 1.0)
    quiet = pc.less(table["tie_contacts_14d"], 0.05)
    slices = {
        "friends' posts": friend,
        "posts of others": pc.invert(friend),
        "friends of less than 14 days": pc.and_(friend, pc.less(table["friendship_days"], 14.0)),
        "friends without contact of late": pc.and_(friend, quiet),
        "viewers of less than 14 days": pc.less(table["viewer_tenure_days"], 14.0),
        "posts of the last 6 hours": pc.less(table["post_age_hours"], 6.0),
        "posts older than 2 days": pc.greater(table["post_age_hours"], 48.0),
    }
    for policy in sorted(pc.unique(table["policy"]).to_pylist()):
        slices[f"policy {policy}"] = pc.equal(table["policy"], policy)
    return slices


def _features(table: pa.Table, day_N: np.ndarray) -> dict[str, dict[str, float | None]]:
    if not table.num_rows:
        return {}
    last_two = np.unique(day_N)[-2:]
    found = {}
    for feature in FEATURES:
        values_N = table[feature.name].to_numpy()
        quantiles = np.quantile(values_N, [0.0, 0.5, 0.99, 1.0])
        found[feature.name] = {
            **dict(zip(("least", "median", "p99", "most"), map(float, quantiles))),
            "mean": float(values_N.mean()),
            "at_default": float((values_N == feature.default).mean()),
            "not_finite": float((~np.isfinite(values_N)).mean()),
            # The hour and the weekday differ between two days by what days are.
            "drift": stability_index(*(values_N[day_N == day] for day in last_two))
            if len(last_two) == 2 and feature.entity != "context"
            else None,
        }
    return found


def stability_index(earlier_N: np.ndarray, later_N: np.ndarray) -> float:
    """Population stability index: the sum over bins of (later - earlier share) x ln(later / earlier share).

    Bins are the deciles of `earlier_N`; of equal deciles one is left, so a feature that is mostly 0 has fewer bins.
    """
    edges_B = np.unique(np.quantile(earlier_N, np.linspace(0, 1, BINS + 1)[1:-1]))
    shares = []
    for values_N in (earlier_N, later_N):
        counts_B = np.bincount(np.searchsorted(edges_B, values_N, side="left"), minlength=len(edges_B) + 1)
        shares.append(np.maximum(counts_B / max(len(values_N), 1), _LEAST_SHARE))
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def _propensity(table: pa.Table) -> dict[str, float] | None:
    propensity_N = pc.drop_null(table["propensity"]).to_numpy()
    if not len(propensity_N):
        return None
    weight_N = 1.0 / propensity_N
    return {
        "known": len(propensity_N) / table.num_rows,
        "least": float(propensity_N.min()),
        "largest weight over mean": float(weight_N.max() / weight_N.mean()),
        "effective share of rows": float(weight_N.sum() ** 2 / (weight_N**2).sum() / len(weight_N)),
    }


def _delays(table: pa.Table, lake: Lake, attribution_us: int) -> dict[str, Any] | None:
    """How long after the showing people act, and how many of those acts reached the lake after their window closed."""
    kinds = pa.array(sorted({task.kind for task in TASKS}))
    actions = lake.read(ACTIONS, ["request_id", "post_id", "kind", "occurred_at", "known_at"])
    actions = actions.filter(pc.and_(pc.is_valid(actions["request_id"]), pc.is_in(actions["kind"], kinds)))
    shown = table.select(["request_id", "post_id", "shown_at"])
    joined = actions.join(shown, ["request_id", "post_id"], join_type="inner")
    if not joined.num_rows:
        return None
    delay_N = joined["occurred_at"].to_numpy() - joined["shown_at"].to_numpy()
    inside_N = (delay_N >= 0) & (delay_N < attribution_us)
    late_N = joined["known_at"].to_numpy() >= joined["shown_at"].to_numpy() + attribution_us
    return {
        "actions": joined.num_rows,
        "hours": {f"p{q}": float(np.quantile(delay_N, q / 100) / HOUR) for q in (50, 90, 99)},
        "window_days": attribution_us / DAY,
        "inside_the_window": float(inside_N.mean()),
        "known_after_it_closed": float((inside_N & late_N).mean()),
    }
