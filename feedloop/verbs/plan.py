"""The verb that answers which parallel layout a model should have on a cluster: plan."""

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from contracts.errors import BadInput
from contracts.files import canonical_json, write_atomically, write_together
from contracts.progress import say, stage
from contracts.workspace import Workspace
from feedloop.console import verb

# What only a search, a plan of training, or a calibration reads: elsewhere it would be ignored without a word.
SEARCHES = ("schedules", "most_dollars")
TRAINS = ("global_batch", "layout", "why_not", *SEARCHES, "html", "trace")
CALIBRATES = {
    "machine_file": "says where --calibrate keeps what it measures; to use a file name it as --cluster",
    "ranks": "says how many ranks --calibrate starts, and it is not asked for",
}
IGNORED = {"requests": (*TRAINS, "sequence", "diagnose"), "diagnose": TRAINS, "layout": SEARCHES}


@click.command("plan")
@click.option("--model", default=None, help="A shipped model's name, or a .json or .toml file that describes one.")
@click.option("--cluster", default=None,
              help="A shipped or calibrated machine's name, or a .json or .toml file that describes one.")  # fmt: skip
@click.option("--calibrate", is_flag=True,
              help="Measure this machine (half a minute), keep its constants and, with --model, plan on it.")  # fmt: skip
@click.option("--machine-file", type=click.Path(path_type=Path, dir_okay=False), default=None,
              help="Where --calibrate keeps the machine; by default WORKSPACE/machines/HOSTNAME.json.")  # fmt: skip
@click.option("--ranks", type=int, default=4, show_default=True, help="Most ranks that --calibrate starts.")
@click.option("--gpus", type=int, default=None, help="Accelerators; one node by default.")
@click.option("--global-batch", type=click.IntRange(1, 10**12), default=None,
              help="Samples a step; by default four million tokens, or 1,024 samples an accelerator without layers.")  # fmt: skip
@click.option(
    "--sequence", type=click.IntRange(1, 10**12), default=None, help="Another sequence length than the model's."
)
@click.option("--layout", default=None, help="This layout instead of a search, such as tp=8,pp=16,dp=128,zero=1.")
@click.option(
    "--why-not", "why_not", default=None, help="Compare this layout with the answer and say why it is not the answer."
)
@click.option(
    "--schedules",
    default=None,
    help="Pipeline schedules to choose from, comma separated; 1f1b, interleaved, zb-h1 and zb-v by default.",
)
@click.option("--most-dollars", type=float, default=None,
              help="Most that a step may cost; the cluster's file says dollars_per_hour of an accelerator.")  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Also write the page here.")
@click.option("--trace", type=click.Path(path_type=Path, dir_okay=False), default=None,
              help="Also write the simulated pipeline here, for chrome://tracing.")  # fmt: skip
@click.option(
    "--requests", default=None, help="Plan serving instead: tokens in, tokens out and requests a second, as 2048:256@8."
)
@click.option("--diagnose", type=click.Path(path_type=Path), default=None,
              help="Say what a run's step log (.jsonl) or torch profiler trace (.json) shows, instead of planning.")  # fmt: skip
@verb
def plan_verb(workspace: Workspace, model: str | None, cluster: str | None, calibrate: bool, machine_file: Path | None,
              ranks: int, gpus: int | None, global_batch: int | None,
              sequence: int | None, layout: str | None, why_not: str | None, schedules: str | None,
              most_dollars: float | None, html: Path | None, trace: Path | None, requests: str | None,
              diagnose: Path | None) -> dict[str, Any]:  # fmt: skip
    """Says which layout fits and is fastest, how much memory it takes, what it sends, and where its time goes.

    Only --calibrate starts and measures anything; else figures come from the machine's constants and their sources.
    """
    from distributed.planner.answer import Question, answer, default_batch
    from distributed.planner.descriptions import load_model
    from distributed.planner.errors import PlanError
    from distributed.planner.layout import parse_layout
    from distributed.planner.machines import MOST_ACCELERATORS, load_cluster
    from distributed.planner.page import page, trace_json
    from distributed.planner.search import limits_from, schedules_from

    if gpus is not None and not 1 <= gpus <= MOST_ACCELERATORS:
        raise BadInput(f"--gpus is {gpus}; 1 to {MOST_ACCELERATORS:,} can be planned on")
    _refuse_ignored(calibrate, model)
    _refuse_shared({"--model": model, "--cluster": cluster, "--diagnose": diagnose, "--machine-file": machine_file,
                    "--html": html, "--trace": trace})  # fmt: skip
    folder = workspace.root / "machines"
    if calibrate and cluster is not None:
        raise BadInput(f"--calibrate measures this machine; --cluster {cluster} names another, give one of them")
    if model is None and calibrate:
        return _calibrated(machine_file, folder, ranks)[0]
    if model is None or (cluster is None and not calibrate):
        raise BadInput(
            "a plan needs --model and --cluster, and so does --diagnose; --calibrate alone measures this machine"
        )
    try:
        # All that needs no machine comes first: nobody waits for a calibration to be told of a wrong name.
        asked = load_model(model, sequence)
        traffic = None if requests is None else _traffic(requests)
        lines = None if diagnose is None else _steps(diagnose)
        for wish in (layout, why_not):
            if wish is not None:
                parse_layout(wish)
        if schedules is not None:
            schedules_from(schedules)
        place = str(_calibrated(machine_file, folder, ranks)[1]) if cluster is None else cluster
        machines = load_cluster(place, gpus, folder)
        if traffic is not None:
            return _serving(asked, machines, traffic)
        if lines is not None:
            return _diagnosis(asked, machines, lines)
        batch = default_batch(asked, machines.gpus) if global_batch is None else global_batch
        limits = limits_from(machines, schedules, most_dollars)
        found = answer(Question(asked, machines, batch, layout or "", why_not or "", limits))
    except PlanError as error:
        raise BadInput(str(error)) from None
    pages = {html: page, trace: trace_json}
    write_together({path: text(found).encode() for path, text in pages.items() if path is not None})
    if click.get_current_context().params["as_json"]:
        return found.report
    _print(found.report)
    return {}


def _refuse_ignored(calibrate: bool, model: str | None) -> None:
    """`BadInput` for an option that the question asked has no use for, and for one that says nothing."""
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    said = {name: f"--{name.replace('_', '-')}" for name in given}
    for name in given:
        value = context.params[name]
        if isinstance(value, str) and not value.strip():
            raise BadInput(f"{said[name]} is empty")
        for other in given:
            if other in IGNORED.get(name, ()):
                raise BadInput(f"{said[other]} says nothing beside {said[name]}, which answers without it")
        if name in CALIBRATES and not calibrate:
            raise BadInput(f"{said[name]} {CALIBRATES[name]}")
        if calibrate and name == "most_dollars":
            raise BadInput("--most-dollars says nothing beside --calibrate: a measured machine has no dollars_per_hour")
        if calibrate and model is None and name in (*TRAINS, "requests", "diagnose", "gpus", "sequence"):
            raise BadInput(f"{said[name]} is of a plan, which needs --model; --calibrate alone measures this machine")


def _refuse_shared(named: dict[str, str | Path | None]) -> None:
    """`BadInput` where two options name one file, of which one would be written over the other."""
    first: dict[str, str] = {}
    for option, value in named.items():
        if value is None or (option in ("--model", "--cluster") and not str(value).endswith((".json", ".toml"))):
            continue
        place = os.path.realpath(value)
        if place in first and option in ("--html", "--trace", "--machine-file"):
            raise BadInput(f"{first[place]} and {option} both name {value}; one would be written over the other")
        first[place] = option


def _calibrated(file: Path | None, folder: Path, ranks: int) -> tuple[dict[str, Any], Path]:
    """What was measured and where it lies; an older file of the machine is replaced only by a fit that makes sense."""
    from distributed.errors import RankFailed
    from distributed.planner.calibrate import calibrate, machine_name
    from distributed.planner.errors import PlanError

    name = machine_name() if file is None else file.stem
    path = file or folder / f"{name}.json"
    if path.suffix != ".json":
        raise BadInput(f"--machine-file is {path}; a name that ends in .json is needed")
    if ranks >= 2:
        # A folder that cannot be made is said before a minute of measuring, not after it.
        path.parent.mkdir(parents=True, exist_ok=True)
    with stage(f"calibrating {name}"):
        try:
            found = calibrate(name, ranks, report=lambda line: say(f"  {line}"))
        except (PlanError, RankFailed) as error:
            raise BadInput(str(error)) from None
    write_atomically(path, canonical_json(found))
    return {**found, "file": str(path)}, path


def _traffic(text: str) -> Any:
    from distributed.planner.serving import Traffic

    shape = re.fullmatch(r"(\d{1,9}):(\d{1,9})(?:@(\d{1,9}(?:\.\d{1,9})?))?", text)
    if not shape:
        raise BadInput(f"--requests is {text!r}, not TOKENS_IN:TOKENS_OUT or TOKENS_IN:TOKENS_OUT@REQUESTS_A_SECOND "
                       "in numbers of at most nine digits")  # fmt: skip
    return Traffic(int(shape[1]), int(shape[2]), float(shape[3] or 0))


def _serving(model: Any, cluster: Any, traffic: Any) -> dict[str, Any]:
    from distributed.planner.serving import advise, serving_plans

    best = advise(serving_plans(model, cluster, traffic), traffic)
    return {f"for {goal}": {"replicas": str(plan), **asdict(plan)} for goal, plan in best.items()}


def _steps(path: Path) -> list[dict[str, Any]]:
    from distributed.planner.diagnosis import read_step_log, read_trace

    return read_trace(path) if path.suffix == ".json" else read_step_log(path)


def _diagnosis(model: Any, cluster: Any, lines: list[dict[str, Any]]) -> dict[str, Any]:
    from distributed.planner.diagnosis import diagnose

    return asdict(diagnose(lines, model, cluster))


def _print(report: dict[str, Any]) -> None:
    """The answer for people: the table of layouts, then the chosen one."""
    model, cluster, chosen = report["model"], report["cluster"], report["chosen"]
    print(f"{model['name']}: {model['parameters'] / 1e9:.2f} B parameters, sequence {model['sequence']}, global batch "
          f"{report['global_batch']}, on {cluster['accelerators']} {cluster['name']} in {cluster['nodes']} nodes; "
          f"{report['layouts_looked_at']} layouts, {report['layouts_too_large']} too large")  # fmt: skip
    widest = max(len(row["layout"]) for row in report["best"])
    print(
        f"{'layout':{widest}}  {'step s':>8} {'samples/s':>9} {'MFU':>6} {'HFU':>6} {'GiB':>6} {'bubble':>6}  bottleneck"
    )
    for row in report["best"]:
        print(f"{row['layout']:{widest}}  {row['step_s']:8.4g} {row['samples_per_s']:9.4g} {row['mfu']:6.1%} {row['hfu']:6.1%} "
              f"{row['peak_gib']:6.1f} {row['bubble']:6.1%}  {row['bottleneck']}")  # fmt: skip
    print(
        "sent by a rank a step: "
        + (", ".join(f"{axis} {sent / 1e9:.4g} GB" for axis, sent in chosen["bytes_by_axis"].items()) or "nothing")
    )
    if "train" in report:
        print(f"train so: {report['train']['command']}  (batch_size {report['train']['global_batch']})")
        for text in report["train"]["not_in_the_command"]:
            print(f"  not in the command: {text}")
    for axis, groups in chosen["groups"].items():
        print(f"{axis}: {groups['groups']} groups of {groups['ranks']}, each on at most {groups['most_nodes']} node(s)")
        if cluster["accelerators"] <= 64 and groups["most_nodes"] > 1:
            for group in groups["listed"]:
                print(f"  ranks {' '.join(map(str, group['ranks']))}: nodes {' '.join(map(str, group['nodes']))}")
    for text in report["reasons"] + report.get("why_not", []):
        print(f"- {text}")
