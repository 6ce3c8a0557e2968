"""The verb that shows it all: demo runs the whole loop and then serves the feed."""

from pathlib import Path
from typing import Any

import click

from contracts.progress import say
from contracts.workspace import Workspace
from feedloop.console import exclusive, verb
from feedloop.verbs.policies import redis_of, redis_option


@click.command("demo")
@click.option("--users", type=int, default=2000, show_default=True, help="People in the simulated log.")
@click.option("--days", type=int, default=28, show_default=True, help="Days of simulated log.")
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--hetrec-lastfm", "hetrec", type=click.Path(path_type=Path), default=None,
              help="Folder of the HetRec Last.fm files: the loop over a real log instead of a simulated one.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Run every stage, also those that nothing changed for.")
@click.option("--serve/--no-serve", envvar="DEMO_SERVE", default=True, show_default=True,
              help="Serve the feed page afterwards (DEMO_SERVE=0: do not).")  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
@redis_option
@verb
def demo_verb(workspace: Workspace, users: int, days: int, seed: int, hetrec: Path | None, fresh: bool, serve: bool,
              port: int, redis_url: str) -> dict[str, Any]:  # fmt: skip
    """The whole loop, from a log to a feed in the browser."""
    from feedloop.loop import LoopSettings, run_loop

    settings = LoopSettings(users=users, days=days, seed=seed)
    if hetrec is not None:
        settings = LoopSettings(source="hetrec-lastfm", path=hetrec)
    if serve:
        # Now rather than after minutes of work.
        from serving.api import require_port

        require_port("127.0.0.1", port)
    with exclusive(workspace):
        url = redis_of(workspace, redis_url)
        summary = run_loop(workspace, settings, url, fresh=fresh)
    if serve:
        from serving.api import serve as serve_feeds

        say(f"The report: {summary['report']}")
        say("Ctrl-C ends the feed; `feedloop stop` ends its Redis.")
        serve_feeds(workspace, url, host="127.0.0.1", port=port)
    return summary
