"""The verb that answers which parallel layout a model should have on a cluster: plan."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from contracts.errors import BadInput
from contracts.files import read_json, write_atomically
from contracts.workspace import Workspace
from feedloop.console import verb


@click.command("plan")
@click.option("--model", required=True, help="A shipped model's name, or a .json or .toml file that describes one.")
@click.option("--cluster", required=True, help="A shipped machine's name, or a .json or .toml file that describes one.")
@click.option("--gpus", type=int, default=None, help="Accelerators; one node by default.")
@click.option("--global-batch", type=int, default=None,
              help="Samples a step; by default four million tokens, or 1,024 samples an accelerator without layers.")  # fmt: skip
@click.option("--sequence", type=int, default=None, help="Another sequence length than the model's.")
@click.option("--layout", default="", help="This layout instead of a search, such as tp=8,pp=16,dp=128,zero=1.")
@click.option(
    "--why-not", "why_not", default="", help="Compare this layout with the answer and say why it is not the answer."
)
@click.option(
    "--schedules",
    default="",
    help="Pipeline schedules to choose from, comma separated; 1f1b, interleaved, zb-h1 and zb-v by default.",
)
@click.option("--most-dollars", type=float, default=0.0,
              help="Most that a step may cost; the cluster's file says dollars_per_hour of an accelerator.")  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Also write the page here.")
@click.option("--trace", type=click.Path(path_type=Path, dir_okay=False), default=None,
              help="Also write the simulated pipeline here, for chrome://tracing.")  # fmt: skip
@click.option(
    "--requests", default="", help="Plan serving instead: tokens in, tokens out and requests a second, as 2048:256@8."
)
@click.option("--diagnose", type=click.Path(path_type=Path), default=None,
              help="Say what a run's step log (.jsonl) or torch profiler trace (.json) shows, instead of planning.")  # fmt: skip
@verb
def plan_verb(workspace: Workspace, model: str, cluster: str, gpus: int | None, global_batch: int | None,
              sequence: int | None, layout: str, why_not: str, schedules: str, most_dollars: float, html: Path | None,
              trace: Path | None, requests: str, diagnose: Path | None) -> dict[str, Any]:  # fmt: skip
    """Says which layout fits and is fastest, how much memory it takes, what it sends, and where its time goes.

    Nothing is started and nothing is measured: figures come from the shipped machine's constants and their sources.
    """
    from distributed.planner import PlanError, load_cluster, load_model
    from distributed.planner.answer import Question, answer, default_batch
    from distributed.planner.page import page, trace_json
    from distributed.planner.search import limits_from

    if gpus is not None and gpus < 1:
        raise BadInput(f"--gpus is {gpus}; at least 1 is needed")
    try:
        asked, machines = load_model(model, sequence), load_cluster(cluster, gpus)
        if requests:
            return _serving(asked, machines, requests)
        if diagnose:
            return _diagnosis(asked, machines, diagnose)
        batch = default_batch(asked, machines.gpus) if global_batch is None else global_batch
        found = answer(
            Question(asked, machines, batch, layout, why_not, limits_from(machines, schedules, most_dollars))
        )
    except PlanError as error:
        raise BadInput(str(error)) from None
    if html:
        write_atomically(html, page(found).encode())
    if trace:
        write_atomically(trace, trace_json(found).encode())
    if click.get_current_context().params["as_json"]:
        return found.report
    _print(found.report)
    return {}


def _serving(model: Any, cluster: Any, text: str) -> dict[str, Any]:
    from distributed.planner.serving import Traffic, advise, serving_plans

    shape = re.fullmatch(r"(\d+):(\d+)(?:@(\d+(?:\.\d+)?))?", text)
    if not shape:
        raise BadInput(f"--requests is {text!r}, not TOKENS_IN:TOKENS_OUT or TOKENS_IN:TOKENS_OUT@REQUESTS_A_SECOND")
    traffic = Traffic(int(shape[1]), int(shape[2]), float(shape[3] or 0))
    best = advise(serving_plans(model, cluster, traffic), traffic)
    return {f"for {goal}": {"replicas": str(plan), **asdict(plan)} for goal, plan in best.items()}


def _diagnosis(model: Any, cluster: Any, path: Path) -> dict[str, Any]:
    from distributed.planner.diagnosis import diagnose, from_trace, read_step_log

    lines = from_trace(read_json(path)) if path.suffix == ".json" else read_step_log(path)
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
    for axis, groups in chosen["groups"].items():
        print(f"{axis}: {groups['groups']} groups of {groups['ranks']}, each on at most {groups['most_nodes']} node(s)")
        if cluster["accelerators"] <= 64 and groups["most_nodes"] > 1:
            for group in groups["listed"]:
                print(f"  ranks {' '.join(map(str, group['ranks']))}: nodes {' '.join(map(str, group['nodes']))}")
    for text in report["reasons"] + report.get("why_not", []):
        print(f"- {text}")
