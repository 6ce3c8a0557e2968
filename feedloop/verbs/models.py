"""Verbs that train: train recall, train prerank, train ranker."""

import contextlib
from pathlib import Path
from typing import Any

import click

from contracts.errors import BadInput
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
@click.option(
    "--model",
    type=click.Choice(["mmoe", "sequence"]),
    default="mmoe",
    show_default=True,
    help="mmoe: what serves. sequence: a transformer over the viewer's last actions; not served yet.",
)
@click.option("--nproc", type=int, default=1, show_default=True, help="Ranks to start on this machine.")
@click.option(
    "--layout",
    default=None,
    help="Parallel axes that multiply to the ranks, of pp, dp_replicate, dp_shard, cp and tp, "
    "e.g. dp_shard=2,tp=2; default: all ranks along dp_replicate.",
)
@click.option(
    "--ep",
    type=int,
    default=1,
    show_default=True,
    help="Ranks over which experts lie: neighbours inside dp_shard x cp.",
)
@click.option("--ep-over-tp", is_flag=True, help="Experts lie over neighbours inside dp_shard x cp x tp instead.")
@click.option(
    "--zero",
    type=click.IntRange(0, 3),
    default=None,
    help="States in shards over dp_shard x cp; default: 1 where dp_shard is above 1, else 0.",
)
@click.option("--micro-batches", type=int, default=1, show_default=True, help="Pieces of each data rank's batch.")
@click.option(
    "--schedule",
    default="1f1b",
    show_default=True,
    help="Of a pipeline: gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v or dualpipe-v.",
)
@click.option("--virtual", type=int, default=1, show_default=True, help="Stages a rank, for schedule interleaved.")
@click.option(
    "--recompute",
    type=click.Choice(["none", "full", "selective"]),
    default="none",
    show_default=True,
    help="What of a layer is computed again in its backward.",
)
@click.option(
    "--ulysses",
    type=int,
    default=1,
    show_default=True,
    help="Ranks of cp that swap tokens for heads; the rest of cp is a ring.",
)
@click.option(
    "--step-log",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=None,
    help="File for a JSON line a step and rank, which `feedloop plan --diagnose` reads; begun anew.",
)
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for a checkpoint an epoch; a training that finds its own there goes on after it, under any layout.",
)
@click.option(
    "--rate-schedule",
    type=click.Choice(["cosine", "linear", "constant", "wsd"]),
    default=None,
    help="How the learning rate goes on after its warm-up; default: cosine.",
)
@click.option(
    "--decay-share",
    type=click.FloatRange(0, 1, min_open=True),
    default=None,
    help="Share of all steps over which wsd falls at the end; default: 0.2.",
)
@click.option(
    "--average-decay",
    type=click.FloatRange(0, 1, max_open=True),
    default=None,
    help="Decay of a moving average (EMA) of the weights, which is judged and kept; default: none.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "float64"]),
    default=None,
    help="Type of weights, sums and optimizer; default: float64, equal under any layout.",
)
@click.option(
    "--compute",
    type=click.Choice(["bfloat16"]),
    default=None,
    help="Narrower type that layers compute in; gradients add up and weights are kept in the precision.",
)
@verb
def ranker_verb(
    workspace: Workspace,
    model: str,
    nproc: int,
    layout: str | None,
    step_log: Path | None,
    checkpoints: Path | None,
    rate_schedule: str | None,
    decay_share: float | None,
    average_decay: float | None,
    precision: str | None,
    compute: str | None,
    **how: Any,
) -> dict[str, Any]:
    """The ranker, calibrated per task, under any legal layout; under torchrun it joins the ranks it is given.

    What is not said here is read from the environment (FEEDLOOP_RANKER_…, FEEDLOOP_SEQUENCE_…), epochs and widths too.
    """
    from distributed.given import given_place
    from ranking.layouts import asked_layout
    from ranking.sequence.train import train_sequence_ranker
    from ranking.settings import RankerSettings, SequenceSettings
    from ranking.train import train_ranker

    asked = asked_layout(layout, nproc, **how)
    said: dict[str, Any] = {
        "rate_schedule": rate_schedule, "decay_share": decay_share, "average_decay": average_decay,
        "precision": precision, "compute": compute,
    }  # fmt: skip
    given = {name: value for name, value in said.items() if value is not None}
    settings = SequenceSettings(**given) if model == "sequence" else RankerSettings(**given)
    if decay_share is not None and settings.rate_schedule != "wsd":
        raise BadInput(
            f"--decay-share {decay_share} is of schedule wsd, but the rate schedule is {settings.rate_schedule}"
        )
    place = given_place(nproc)  # ranks that a launcher started share the first one's lock
    with exclusive(workspace) if place is None or place.index == 0 else contextlib.nullcontext():
        if isinstance(settings, SequenceSettings):
            return train_sequence_ranker(workspace, settings, nproc, asked, step_log, checkpoints)
        return train_ranker(workspace, settings, nproc, asked, step_log, checkpoints)
