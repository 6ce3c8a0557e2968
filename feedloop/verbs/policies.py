"""Verbs that judge and deliver policies: replay, publish, update, rollback, serve, stop."""

from pathlib import Path
from typing import Any

import click

from contracts.errors import BadInput
from contracts.lake import check_made_of
from contracts.machine.redis_server import RedisSettings, ensure, stop
from contracts.states import STATES
from contracts.tables import TABLES
from contracts.workspace import Workspace
from feedloop.console import exclusive, verb

redis_option = click.option("--redis-url", envvar="REDIS_URL", default="",
                            help="A Redis server that runs already. Default: one of the workspace's own.")  # fmt: skip


def redis_of(workspace: Workspace, redis_url: str = "") -> str:
    """The URL to use: the given one (which must answer), else that of the workspace's own server, started if need be.

    Verbs that need a log look for it first, so that a mistyped folder gets no server.
    """
    return ensure(workspace.run / "redis", RedisSettings(url=redis_url) if redis_url else None)


@click.command("replay")
@click.option("--policy", "policies", multiple=True, metavar="NAME",
              help="A policy to judge; give it again for more. Default: all. The baseline is always judged too.")  # fmt: skip
@click.option("--from", "start", metavar="DATE", help="First day (UTC) of the requests. Default: the test window's.")
@click.option("--to", "end", metavar="DATE", help="The day (UTC) before which they end. Default: the test window's.")
@click.option("--estimator", metavar="NAME", help="The estimator that decides. Default: the best that the log allows.")
@click.option("--beside", multiple=True, type=click.Path(path_type=Path), metavar="WORKSPACE",
              help="A log of another policy, to see what lasts under each; give it again for more.")  # fmt: skip
@verb
def replay_verb(workspace: Workspace, policies: tuple[str, ...], start: str | None, end: str | None, estimator: str | None,
                beside: tuple[Path, ...]) -> dict[str, Any]:  # fmt: skip
    """Judges the policies on logged traffic; writes reports/replay.html."""
    from simulator.replay import Question, replay

    question = Question.of(policies, start, end, estimator, beside)
    workspace.dataset()
    with exclusive(workspace):
        return replay(workspace, question=question)


@click.command("publish")
@redis_option
@verb
def publish_verb(workspace: Workspace, redis_url: str) -> dict[str, Any]:
    """Puts all that serving needs into Redis, as one version."""
    from serving.publish import publish

    workspace.dataset()
    with exclusive(workspace):
        return publish(workspace, redis_of(workspace, redis_url))


@click.command("update")
@redis_option
@verb
def update_verb(workspace: Workspace, redis_url: str) -> dict[str, Any]:
    """Brings what was served and done since into lake, features and Redis."""
    from pipelines.features import build_states
    from pipelines.sizing import session_for
    from serving.feedback import drain
    from serving.publish import publish

    workspace.dataset()
    with exclusive(workspace):
        url = redis_of(workspace, redis_url)
        rows = drain(workspace, url)
        if not any(rows.values()) and _features_are_current(workspace):
            return {"rows": rows, "published": None}
        build_states(workspace, session_for(workspace.lake), carry_on=True)
        return {"rows": rows, "published": publish(workspace, url)}


def _features_are_current(workspace: Workspace) -> bool:
    """False also after an update that was killed between the lake and the feature state."""
    try:
        for spec in STATES.values():
            check_made_of(workspace.features.manifest(spec), workspace.lake, TABLES.values(), "features")
    except BadInput:
        return False
    return True


@click.command("rollback")
@redis_option
@verb
def rollback_verb(workspace: Workspace, redis_url: str) -> dict[str, Any]:
    """Switches serving back to the version before the present one."""
    from serving.publish import rollback

    workspace.dataset()
    with exclusive(workspace):
        return rollback(workspace, redis_of(workspace, redis_url))


@click.command("stop")
@verb
def stop_verb(workspace: Workspace) -> dict[str, Any]:
    """Ends the workspace's own Redis server; what it holds stays on disk for the next start."""
    return {"stopped": stop(workspace.run / "redis")}


@click.command("serve")
@redis_option
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
@verb
def serve_verb(workspace: Workspace, redis_url: str, host: str, port: int) -> dict[str, Any]:
    """The feed API and its page, until interrupted."""
    from serving.api import serve

    workspace.dataset()
    serve(workspace, redis_of(workspace, redis_url), host=host, port=port)
    return {"served": f"http://{host}:{port}/"}
