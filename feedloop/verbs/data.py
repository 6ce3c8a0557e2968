"""Verbs that make and prepare logs: simulate, features, samples."""

from typing import Any

import click

from contracts.workspace import Workspace
from feedloop.console import exclusive, verb
from feedloop.log import bring_log


@click.command("simulate")
@click.option("--users", type=int, default=2000, show_default=True, help="People in the environment.")
@click.option("--days", type=int, default=28, show_default=True, help="Days of log.")
@click.option("--seed", type=int, default=7, show_default=True, help="The same seed gives the same bytes.")
@click.option("--policy", metavar="NAME[:EPSILON|:pl=TEMPERATURE]", default=None,
              help="Who fills the feeds: chronological, popularity, random, ties or bait; alone, epsilon-greedy, or "
                   "Plackett-Luce. [default: chronological:0.6]")  # fmt: skip
@verb
def simulate_verb(workspace: Workspace, policy: str | None, **options: int) -> dict[str, Any]:
    """Lets the behaviour environment write a log into the lake."""
    from simulator.environment import EnvironmentSettings, simulate
    from simulator.environment.policies import policy_settings

    settings = EnvironmentSettings(**options, **(policy_settings(policy) if policy else {}))
    settings.check()
    with exclusive(workspace):
        return bring_log(workspace, lambda staging: simulate(staging, settings))


@click.command("features")
@verb
def features_verb(workspace: Workspace) -> dict[str, Any]:
    """Spark: counter states for replay and publish."""
    from pipelines.features import build_states
    from pipelines.spark import session

    workspace.dataset()
    with exclusive(workspace):
        return build_states(workspace, session())


@click.command("samples")
@verb
def samples_verb(workspace: Workspace) -> dict[str, Any]:
    """Spark: one training row per impression, free of the future."""
    from pipelines.samples import build_samples
    from pipelines.spark import session

    workspace.dataset()
    with exclusive(workspace):
        return build_samples(workspace, session())
