"""Verbs that train: train recall, train prerank, train ranker."""

import contextlib
import os
from typing import Any

import click

from contracts.workspace import Workspace
from feedloop.console import exclusive, verb


@click.group("train")
def train_verb() -> None:
    """Trains one of the models on the time-split samples."""


@train_verb.command("recall")
@verb
def recall_verb(workspace: Workspace) -> dict[str, Any]:
    """All recall paths and the weights of their merge, with recall@100 on the test window."""
    from recall.train import train_recall

    with exclusive(workspace):
        return train_recall(workspace)


@train_verb.command("prerank")
@verb
def prerank_verb(workspace: Workspace) -> dict[str, Any]:
    """LightGBM lambdarank, grouped by request."""
    from ranking.prerank import train_prerank

    with exclusive(workspace):
        return train_prerank(workspace)


@train_verb.command("ranker")
@click.option("--nproc", type=int, default=1, show_default=True, help="Ranks to start on this machine.")
@click.option("--layout", default=None, help="Parallel axes, e.g. dp_replicate=2; default: all ranks data-parallel.")
@verb
def ranker_verb(workspace: Workspace, nproc: int, layout: str | None) -> dict[str, Any]:
    """The MMoE ranker, calibrated per task; under torchrun it joins the ranks it is given."""
    from ranking.train import train_ranker

    first = os.environ.get("RANK", "0") == "0"  # ranks that a launcher started share the first one's lock
    with exclusive(workspace) if first else contextlib.nullcontext():
        return train_ranker(workspace, nproc=nproc, layout=layout)
