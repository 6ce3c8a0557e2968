"""The verb that brings a foreign log into the lake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from contracts.errors import BadInput
from contracts.workspace import Workspace
from feedloop.console import exclusive, verb
from feedloop.log import bring_log

MAPPED = "mapped"
"""The source whose layout is told by a mapping file."""
SERVED = "served"
"""The source that is the stream of serving."""


@click.command("ingest")
@click.argument("source")
@click.argument("path")
@click.option(
    "--mapping", type=click.Path(path_type=Path), help="For SOURCE mapped: the file that says what is where (TOML)."
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Hold every table against its expectations with Spark and keep broken days out.",
)
@verb
def ingest_verb(workspace: Workspace, source: str, path: str, mapping: Path | None, check: bool) -> dict[str, Any]:
    """Reads the log at PATH, laid out as SOURCE says, into the lake.

    SOURCE is the name of a published layout, or `mapped` for a log of your own (docs/data.md has an example). `served`
    adds what serving wrote to its stream to the log that is there; PATH is then the address of its Redis.
    """
    if source == SERVED and mapping is None:
        from pipelines.sources.stream.served import bring_served
        from pipelines.spark import session

        workspace.dataset()
        with exclusive(workspace):
            return bring_served(workspace, session(), path)
    read = _reader(source, Path(path), mapping)

    def bring(staging: Workspace) -> dict[str, Any]:
        report = read(staging)
        if check:
            from pipelines.expectations import keep_out_broken_days
            from pipelines.spark import session

            report["expectations"] = keep_out_broken_days(staging, session())
        return report

    with exclusive(workspace):
        return bring_log(workspace, bring)


def _reader(source: str, path: Path, mapping: Path | None) -> Callable[[Workspace], dict[str, Any]]:
    from pipelines.sources import SOURCES
    from pipelines.sources.mapped import ingest_mapped
    from pipelines.sources.mapping import load_mapping

    if (source == MAPPED) != (mapping is not None):
        raise BadInput(f"source {MAPPED} and --mapping belong together: give both or neither")
    if mapping is not None:
        told = load_mapping(mapping)
        return lambda staging: ingest_mapped(told, path, staging)
    if source not in SOURCES:
        raise BadInput(f"unknown source {source!r}; there are: {', '.join([*SOURCES, MAPPED, SERVED])}")
    return lambda staging: SOURCES[source](path, staging)
