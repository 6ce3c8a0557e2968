"""The verb that looks at the machine: doctor."""

from dataclasses import asdict
from typing import Any

import click

from contracts.workspace import Workspace
from feedloop.console import verb


@click.command("doctor")
@verb
def doctor_verb(workspace: Workspace) -> dict[str, Any]:
    """Says what this machine has and lacks, and what to do about it."""
    from feedloop.machine.doctor import examine

    return {"findings": [asdict(finding) for finding in examine()]}
