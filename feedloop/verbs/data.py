"""Verbs that make and prepare logs: simulate, features, samples."""

from pathlib import Path
from typing import Any

import click

from contracts.errors import BadInput
from contracts.workspace import Workspace
from feedloop.console import exclusive, verb
from feedloop.log import bring_log

FEEDS = ("policy", "exploration", "epsilon", "temperature")
"""Settings that --policy stands for."""


@click.command("simulate")
@click.option("--users", type=int, default=None, help="People in the environment. [default: 2000, or as --like]")
@click.option("--days", type=int, default=None, help="Days of log. [default: 28, or as --like]")
@click.option("--seed", type=int, default=None, help="The same seed gives the same bytes. [default: 7]")
@click.option("--policy", metavar="NAME[:EPSILON|:pl=TEMPERATURE]", default=None,
              help="Who fills the feeds: chronological, popularity, random, ties or bait; alone, epsilon-greedy, or "
                   "Plackett-Luce. [default: chronological:0.6]")  # fmt: skip
@click.option("--models", metavar="WORKSPACE", type=click.Path(path_type=Path), default=None,
              help="The feed pipeline that serves fills the feeds, with the models in force there; --policy is then full, "
                   "prerank, popularity or chronological, alone or with :EPSILON. [default: full]")  # fmt: skip
@click.option("--set", "assignments", metavar="NAME=VALUE", multiple=True,
              help="Any other setting of the environment (docs/environment.md lists them); may be given several times.")  # fmt: skip
@click.option("--like", metavar="LAKE", type=click.Path(path_type=Path), default=None,
              help="A workspace or lake to whose log the environment is fitted first; reports/likeness then holds the two "
                   "side by side.")  # fmt: skip
@verb
def simulate_verb(workspace: Workspace, policy: str | None, models: Path | None, assignments: tuple[str, ...],
                  like: Path | None, **options: int | None) -> dict[str, Any]:  # fmt: skip
    """Lets the behaviour environment write a log into the lake."""
    from simulator.environment import EnvironmentSettings, simulate
    from simulator.environment.policies import policy_settings

    fills = "--models" if models is not None else f"--policy {policy}" if policy is not None else None
    given = _given(assignments, options, fills)
    if models is not None:
        if like is not None:
            raise BadInput("--like and --models cannot go together: a fitted population has not met those models")
        return _simulate_served(workspace, "full" if policy is None else policy, models, given)
    given |= policy_settings(policy) if policy is not None else {}
    if like is not None:
        return _simulate_like(workspace, like, given)
    settings = EnvironmentSettings(**given)
    settings.check()
    settings.split()
    with exclusive(workspace):
        return bring_log(workspace, lambda staging: simulate(staging, settings))


def _given(assignments: tuple[str, ...], options: dict[str, int | None], fills: str | None) -> dict[str, Any]:
    """The settings of --set and of the options; `BadInput` where two of them say the same thing.

    `fills`: the option that says what fills the feeds, where there is one.
    """
    from simulator.environment.settings import assigned

    given = assigned(assignments)
    if fills is not None and (again := [name for name in FEEDS if name in given]):
        raise BadInput(
            f"--set {again[0]}={given[again[0]]} and {fills} cannot go together: what fills the feeds is then said by "
            f"--policy alone"
        )
    for name, value in options.items():
        if value is not None and name in given:
            raise BadInput(f"--{name} {value} and --set {name}={given[name]} cannot go together: both say {name}")
    return given | {name: value for name, value in options.items() if value is not None}


def _simulate_served(workspace: Workspace, policy: str, models: Path, given: dict[str, Any]) -> dict[str, Any]:
    from simulator.environment import EnvironmentSettings, simulate
    from simulator.environment.served import served_policy, served_settings

    settings = EnvironmentSettings(**{"daily": True} | given | served_settings(policy))
    if not settings.daily:
        raise BadInput("--set daily=false and --models cannot go together: what serves reads each day as it ends")
    settings.check()
    settings.split()
    with exclusive(workspace):
        return bring_log(
            workspace, lambda log: simulate(log, settings, served_policy(policy, Workspace(models), log, settings))
        )


def _simulate_like(workspace: Workspace, like: Path, given: dict[str, Any]) -> dict[str, Any]:
    from simulator.likeness import imitate, open_log, print_marginals, write_report

    log = open_log(like, workspace, given)
    with exclusive(workspace):
        report = bring_log(workspace, lambda staging: imitate(staging, log, given))
        artifact = write_report(workspace, report)
    print_marginals(report)
    fit = report["fit"]
    return {
        "source": report["source"], "like": report["log"]["source"], "counts": report["counts"],
        "content_hashes": report["content_hashes"], "fitted": len(fit["estimates"]), "not_fitted": fit["not_fitted"],
        "distances": [{key: one[key] for key in ("name", "distance", "unit", "relative")} for one in report["marginals"]],
        "report": str(workspace.reports / "likeness" / "likeness.html"), "version": artifact.version,
    }  # fmt: skip


@click.command("features")
@click.option("--strength", is_flag=True,
              help="Also learn how likely people are to contact each friend within a week: table tie_strength.")  # fmt: skip
@verb
def features_verb(workspace: Workspace, strength: bool) -> dict[str, Any]:
    """Spark: counter states for replay and publish, from the days of the log that are as they should be."""
    from pipelines.expectations import keep_out_broken_days
    from pipelines.features import build_states
    from pipelines.sizing import session_for
    from pipelines.strength import build_strength

    workspace.dataset()
    with exclusive(workspace):
        spark = session_for(workspace.lake)
        kept_out = keep_out_broken_days(workspace, spark)["kept_out"]
        report = build_states(workspace, spark) | {"kept_out": kept_out}
        return report | {"strength": build_strength(workspace, spark)} if strength else report


@click.command("samples")
@verb
def samples_verb(workspace: Workspace) -> dict[str, Any]:
    """Spark: one training row per impression, free of the future."""
    from pipelines.samples import build_samples
    from pipelines.sizing import session_for

    workspace.dataset()
    with exclusive(workspace):
        return build_samples(workspace, session_for(workspace.lake))
