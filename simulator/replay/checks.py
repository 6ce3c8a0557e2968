"""What a log or a model must be like before replay judges anything by it; each fault is one sentence with an example."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.artifacts import Artifact
from contracts.clock import SECOND, to_datetime
from contracts.errors import BadInput
from contracts.splits import TimeSplit
from simulator.evaluation import LoggedData, propensity_check


def no_requests(requests: pa.Table, window: str, start: int, end: int) -> str:
    """Why a window [start, end) without any of the log's `requests` cannot be replayed."""
    days = f"{to_datetime(start):%Y-%m-%d %H:%M} to {to_datetime(end):%Y-%m-%d %H:%M}"
    about = f"the {window} window, {days}, has no request: 0 of the log's {requests.num_rows:,} requests lie in it"
    if requests.num_rows == 0:
        return about
    row = requests.sort_by("requested_at").slice(requests.num_rows - 1).to_pylist()[0]
    return (
        f"{about}, such as request {row['request_id']}, the last, at {to_datetime(row['requested_at']):%Y-%m-%d %H:%M}"
    )


def check_requests(requests: pa.Table, window: str) -> None:
    """`BadInput` for a request id that comes more than once."""
    ids, counts = np.unique(requests["request_id"].to_numpy(), return_counts=True)
    twice = ids[counts > 1]
    if len(twice):
        example = f"request {twice[0]} ({counts[counts > 1][0]} times)"
        raise BadInput(f"{len(twice)} request ids of the {window} window come more than once, such as {example}")


def check_slates(samples: pa.Table, window: str) -> None:
    """`BadInput` when a slate has two posts at one position, or a position below 0."""
    if samples.num_rows == 0:
        raise BadInput(f"the {window} window has no samples: run `feedloop samples` on this log")
    keys = np.stack([samples["request_id"].to_numpy(), samples["position"].to_numpy().astype(np.int64)], axis=1)
    if keys[:, 1].min() < 0:
        raise BadInput(
            f"request {keys[keys[:, 1].argmin(), 0]} of the {window} window has an impression at position {keys[:, 1].min()}"
        )
    pairs, counts = np.unique(keys, axis=0, return_counts=True)
    twice = pairs[counts > 1]
    if len(twice):
        raise BadInput(
            f"{len(twice)} positions of the {window} window hold more than one post, "
            f"such as request {twice[0, 0]} at position {twice[0, 1]}"
        )


def check_split(samples: pa.Table, split: TimeSplit) -> None:
    """`BadInput` when samples are named after a window in which they do not lie (requested and shown): a random split."""
    requested_at, shown_at = samples["requested_at"].to_numpy(), samples["shown_at"].to_numpy()
    names = samples["split"].to_numpy(zero_copy_only=False)
    outside = np.zeros(len(names), bool)
    for name in ("train", "validation", "test"):
        start, end = getattr(split, name)
        outside |= (names == name) & ((requested_at < start) | (shown_at >= end))
    if outside.any():
        row = samples.slice(int(np.flatnonzero(outside)[0]), 1).to_pylist()[0]
        start, end = getattr(split, row["split"])
        raise BadInput(
            f"the samples are not split by time: {int(outside.sum()):,} of {len(outside):,} impressions lie outside the window "
            f"that they are named after, such as request {row['request_id']}, post {row['post_id']}, shown "
            f"{to_datetime(row['shown_at']):%Y-%m-%d %H:%M} and called {row['split']}, which is {to_datetime(start):%Y-%m-%d %H:%M} to "
            f"{to_datetime(end):%Y-%m-%d %H:%M}; a random split lets a model see the days that it is judged on"
        )


def check_sums(log: LoggedData, request_R: np.ndarray, window: str) -> dict[str, Any]:
    """The finding of `propensity_check`; `BadInput` when the propensities cannot sum to one at each position."""
    found = propensity_check(log)
    if found["passed"]:
        return found
    inverse_RK = np.where(log.shown_RK, 1.0 / (log.propensity_RK * np.maximum(log.pool_R, 1)[:, None]), 0.0)
    r, k = np.unravel_index(int(np.argmax(inverse_RK)), inverse_RK.shape)
    raise BadInput(
        f"the propensities of the {window} window do not sum to one over a pool: {found['sentence']}, over "
        f"{int(log.shown_RK.sum()):,} impressions, such as request {request_R[r]}, position {k}, post {log.post_RK[r, k]}, shown "
        f"with {log.propensity_RK[r, k]:.4g} out of {log.pool_R[r]} posts"
    )


def check_propensities(samples: pa.Table, window: str) -> None:
    """`BadInput` when a log that claims propensities lacks some, or has some outside (0, 1]."""
    propensity = samples["propensity"].combine_chunks()
    missing = propensity.null_count
    values = pc.fill_null(propensity, 0.5).to_numpy()
    wrong = ~((values > 0) & (values <= 1))
    if not missing and not wrong.any():
        return
    bad = pc.is_null(propensity).to_numpy(zero_copy_only=False) | wrong
    row = samples.slice(int(np.flatnonzero(bad)[0]), 1).to_pylist()[0]
    raise BadInput(
        f"{int(bad.sum())} of {len(bad)} impressions of the {window} window have a propensity that is missing or outside (0, 1], "
        f"such as request {row['request_id']}, position {row['position']}, post {row['post_id']}: {row['propensity']}"
    )


def check_clocks(samples: pa.Table, window: str) -> None:
    """`BadInput` when impressions are dated before the request that they answer: two clocks disagree, so nothing can be said
    of what was known when."""
    early_us = samples["requested_at"].to_numpy() - samples["shown_at"].to_numpy()
    skewed = early_us > 0
    if skewed.any():
        worst = int(np.argmax(early_us))
        row = samples.slice(worst, 1).to_pylist()[0]
        raise BadInput(
            f"{int(skewed.sum())} of {len(early_us)} impressions of the {window} window are dated before their request, by up to "
            f"{early_us[worst] / SECOND:,.3f} s, such as request {row['request_id']}, post {row['post_id']}: a clock of the log is off"
        )


def check_births(request_R: np.ndarray, requested_at_R: np.ndarray, post_RK: np.ndarray, created_at_RK: np.ndarray,
                 window: str) -> None:  # fmt: skip
    """`BadInput` when a slate holds a post that was created (`created_at_RK`, UTC us) after the request."""
    unborn_RK = (post_RK >= 0) & (created_at_RK > requested_at_R[:, None])
    if unborn_RK.any():
        r, k = (int(x[0]) for x in np.nonzero(unborn_RK))
        raise BadInput(
            f"{int(unborn_RK.sum())} of {int((post_RK >= 0).sum())} impressions of the {window} window show a post that was created "
            f"after the request, such as request {request_R[r]}, post {post_RK[r, k]}, created "
            f"{(created_at_RK[r, k] - requested_at_R[r]) / SECOND:,.3f} s later: a clock of the log is off"
        )


def check_pools(
    request_R: np.ndarray, pool_start_R: np.ndarray, pool_P: np.ndarray, post_RK: np.ndarray, window: str
) -> None:
    """`BadInput` when a shown post is not in the pool that its request could choose from."""
    size_R = np.diff(pool_start_R)
    owner_P = np.repeat(np.arange(len(size_R)), size_R)
    at_R, position = np.nonzero(post_RK >= 0)
    _, codes = np.unique(np.concatenate([pool_P, post_RK[at_R, position]]), return_inverse=True)
    width = codes.max() + 1
    pool_keys = owner_P * width + codes[: len(pool_P)]
    shown_keys = at_R * width + codes[len(pool_P) :]
    outside = ~np.isin(shown_keys, pool_keys)
    if outside.any():
        first = int(np.flatnonzero(outside)[0])
        raise BadInput(
            f"{int(outside.sum())} impressions of the {window} window show a post that is not among their request's candidates, "
            f"such as request {request_R[at_R[first]]}, post {post_RK[at_R[first], position[first]]}"
        )


def check_features(parity: dict[str, Any]) -> None:
    """`BadInput` when samples hold other values than what was known at their requests (`compare_features`): a model that was
    trained on them may have seen the future, and its replay would flatter it."""
    if not parity["differing"]:
        return
    name, worst = max(parity["differing"].items(), key=lambda one: one[1]["largest_difference"])
    raise BadInput(
        f"{worst['rows']} of {parity['rows']:,} impressions hold another value of {name} in the samples than was known at their "
        f"request, such as request {worst['request_id']}, post {worst['post_id']}: {worst['batch']:g} instead of {worst['online']:g}; "
        f"features that differ: {', '.join(sorted(parity['differing']))}. A value from after the request, or a log that changed "
        "since: run `feedloop samples` and the training again"
    )


def check_model(artifact: Artifact, samples_hash: str, test_start: int) -> None:
    """`BadInput` when a model was trained on other samples than the workspace has, whose training window may reach into
    the test window, or says itself that it was (`metrics["trained_until"]`, UTC us)."""
    trained_on = artifact.parents.get("samples")
    if trained_on != samples_hash:
        raise BadInput(
            f"the {artifact.kind} model {artifact.version} was trained on samples {str(trained_on)[:12]}, not on the present "
            f"{samples_hash[:12]}, so its training may reach into the test window: train it again before replay"
        )
    until = artifact.metrics.get("trained_until")
    if until is not None and until > test_start:
        raise BadInput(
            f"the {artifact.kind} model {artifact.version} was trained on the log until {to_datetime(until):%Y-%m-%d %H:%M}, "
            f"after the test window began ({to_datetime(test_start):%Y-%m-%d %H:%M}): replay would judge it on what it has seen"
        )
