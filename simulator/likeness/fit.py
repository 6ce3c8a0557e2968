"""The whole fit of a log, from its tables alone, and the environment's settings that it amounts to."""

from typing import Any

import numpy as np

from contracts.clock import DAY, to_datetime
from contracts.progress import stage
from simulator.environment import EnvironmentSettings
from simulator.likeness.ages import fit_lives
from simulator.likeness.estimates import Fit
from simulator.likeness.levels import fit_levels
from simulator.likeness.log import LoggedLog
from simulator.likeness.looks import fit_examination
from simulator.likeness.populations import fit_graph, fit_hours, fit_kinds
from simulator.likeness.rates import fit_gaps, fit_rates
from simulator.likeness.returns import fit_posting, fit_returns

WORLDS = 6
"""Simulated worlds to which action rates are matched."""
MOST_USERS, MOST_DAYS = 2_000, 28
"""Size of those worlds where the log is larger."""
NEVER_FITTED = {
    "tastes and topics": "the environment's own 24 topics and its spread of tastes: a log shows topics, not what draws to them",
    "who filled the feeds": "policies are not fitted: --policy says which one fills the simulated feeds",
    "ties themselves": "hidden: friendship and contacts stand for them",
}


def fit_log(
    log: LoggedLog, given: dict[str, Any] | None = None, *, worlds: int = WORLDS
) -> tuple[Fit, EnvironmentSettings]:
    """What the log says of the environment's parameters, each with its interval, and the settings with these values.

    `given`: settings that are not taken from the log, sizes and seed apart also those of the worlds that are simulated to
    fit action rates; so a policy belongs there when the log's feeds were filled by another than the default.
    """
    given = given or {}
    fit = Fit()
    with stage("fit: examination"):
        curve_K = fit_examination(log, fit)
    with stage("fit: half-lives, rates, return times, populations"):
        fit_lives(log, curve_K, fit)
        fit_rates(log, fit)
        fit_gaps(log, fit)
        fit_returns(log, fit)
        fit_posting(log, fit)
        fit_hours(log, fit)
        fit_kinds(log, fit)
        fit_graph(log, settings_of_worlds(log, fit, given), fit)
    with stage("fit: action rates by tie strength"):
        fit_levels(log, settings_of_worlds(log, fit, given), fit, worlds)
    fit.not_fitted |= NEVER_FITTED
    return fit, settings_of(log, fit, given)


def settings_of_worlds(log: LoggedLog, fit: Fit, given: dict[str, Any]) -> EnvironmentSettings:
    """As `settings_of`, for worlds of the log's own size, or of `MOST_USERS` and `MOST_DAYS` where it is larger."""
    kept = {name: value for name, value in given.items() if name not in ("users", "days", "seed", "warmup_days")}
    size = {"users": min(log.users, MOST_USERS), "days": min(max(log.days, 1), MOST_DAYS)}
    return settings_of(log, fit, kept | size)


def settings_of(log: LoggedLog, fit: Fit, given: dict[str, Any]) -> EnvironmentSettings:
    """The environment with what is `given`, else with what was fitted so far; defaults elsewhere."""
    values: dict = {"users": log.users, "days": max(log.days, 1), "live_days": log.dataset.live_us / DAY}
    values["start"] = to_datetime(log.dataset.start // DAY * DAY)
    values["warmup_days"] = int(np.clip(round(log.dataset.warmup_us / DAY), 0, values["days"] - 1))
    shown = log.impressions
    if shown is not None:
        values["slate_size"] = int(shown.position_I.max()) + 1
        values["pool_size"] = max(int(shown.pool_I.max()), values["slate_size"])
    for estimate in fit.estimates.values():
        if not estimate.setting:
            continue
        value = max(estimate.value, 0.0) if estimate.setting != "tie_slopes" else estimate.value
        if estimate.place is None:
            values[estimate.setting] = value
        else:
            former = values.get(estimate.setting, getattr(EnvironmentSettings(), estimate.setting))
            values[estimate.setting] = tuple(value if i == estimate.place else x for i, x in enumerate(former))
    for name in ("kind_shares", "visibility_shares"):
        if name in values:
            values[name] = tuple(x / sum(values[name]) for x in values[name])
    values |= given
    if "warmup_days" not in given:
        values["warmup_days"] = min(values["warmup_days"], max(values["days"] // 4, 1), values["days"] - 1)
    return EnvironmentSettings(**values)
