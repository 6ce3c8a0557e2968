"""A simulated log like a given one: fit, simulate with the fit, hold the two side by side."""

from pathlib import Path
from typing import Any

from contracts.errors import BadInput
from contracts.progress import stage
from contracts.workspace import Workspace
from simulator.environment import simulate
from simulator.environment.settings import MOST_DAYS as MOST_LOG_DAYS
from simulator.likeness.estimates import Fit
from simulator.likeness.fit import WORLDS, fit_log, settings_of, settings_of_worlds
from simulator.likeness.log import LoggedLog, lake_at, read_log
from simulator.likeness.marginals import compare, marginals


def open_log(like: Path, workspace: Workspace, overrides: dict[str, Any]) -> LoggedLog:
    """The log at `like` (a workspace or a lake), when it can be fitted and a log like it can be simulated.

    `overrides`: settings that are not taken from the log. `BadInput` says what is missing, before anything is written.
    """
    lake = lake_at(like)
    if lake.root.resolve() == workspace.lake.root.resolve():
        raise BadInput(
            f"{like} is the log of this workspace, which the simulated one would replace; name another --workspace"
        )
    log = read_log(lake)
    if log.days > MOST_LOG_DAYS and "days" not in overrides:
        raise BadInput(
            f"the log spans {log.days} days and a simulated one has at most {MOST_LOG_DAYS}: say with --days how many to "
            f"simulate; the fit takes the whole log either way"
        )
    wanted = [settings_of(log, Fit(), overrides)]
    if log.impressions is not None:
        wanted.append(settings_of_worlds(log, Fit(), overrides))
    for settings in wanted:
        settings.check()
        settings.split()
    return log


def imitate(staging: Workspace, log: LoggedLog, overrides: dict[str, Any], *, worlds: int = WORLDS) -> dict[str, Any]:
    """Fits `log`, writes a simulated log into `staging` and returns the report; `overrides` go before what was fitted."""
    fit, settings = fit_log(log, overrides, worlds=worlds)
    made = simulate(staging, settings)
    with stage("simulated against logged"):
        beside = compare(marginals(log), marginals(read_log(staging.lake)))
    shown = log.impressions
    return {
        "source": "environment, like a given log",
        "log": {
            "source": log.dataset.source, "users": log.users, "days": log.days, "posts": len(log.author_P),
            "impressions": 0 if shown is None else len(shown.post_I), "sessions": len(log.session_user_S),
            "tables": log.parents,
        },
        "fit": fit.as_dict(), "settings": settings.model_dump(mode="json"), "absent": log.absent, "marginals": beside,
        "counts": made["counts"], "content_hashes": made["content_hashes"], "verdict": _verdict(fit, beside),
    }  # fmt: skip


def _verdict(fit: Fit, beside: list[dict]) -> list[str]:
    worst, close = beside[0], [one for one in beside if one["relative"] <= 0.1]
    return [
        f"{len(close)} of {len(beside)} marginals of the simulated log lie within a tenth of the logged ones.",
        f"Farthest: {worst['name']}, {worst['measure']} {worst['distance']:.3g} {worst['unit']}.",
        f"{len(fit.estimates)} quantities were fitted with an interval. {len(fit.not_fitted)} were not: what belongs to them "
        f"keeps the environment's default.",
    ]
