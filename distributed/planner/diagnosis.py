"""What a running layout spends its time on, from a step log or a torch profiler trace, and what to change.

A step log has one JSON object a line and rank: `rank`, `step`, `seconds`, and what is known of `compute_s`,
`communication_s` (a number, or an object by axis), `bubble_s`, `stage`, `samples` (of the global batch),
`expert_tokens` (tokens each expert took) and `dropped_tokens`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from distributed.planner.described import Figure, Positive, Size, sentence_of
from distributed.planner.errors import PlanError
from distributed.planner.machines import Cluster
from distributed.planner.models import Model

# A layout that talks for more than this share of its time has a better neighbour; above the second it is an alarm.
WATCH, ALARM = 0.2, 0.3
# Clocks of parts and whole are read one after the other: so much more than the whole may a part be.
MOST_OF_A_STEP = 1.05
COMMUNICATION = ("nccl", "gloo:", "c10d::", "all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all",
                 "alltoall", "broadcast_", "sendrecv")  # fmt: skip


@dataclass
class Diagnosis:
    """Shares of a mean step, ratios over ranks and experts, and sentences on what to change. None: not in the log."""

    steps: int
    seconds: float
    communication: float
    by_axis: dict[str, float] = field(default_factory=dict)
    bubble: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    stage_imbalance: float | None = None
    expert_imbalance: float | None = None
    dropped: float | None = None
    bound: str = "computation"
    advice: list[str] = field(default_factory=list)


class StepLine(BaseModel):
    """One line of a step log, as it may be; what else it says is left alone."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    seconds: Positive
    rank: Size = 0
    step: Size = 0
    stage: Size = 0
    samples: Figure = 0
    compute_s: Figure = 0
    bubble_s: Figure = 0
    communication_s: Annotated[
        dict[str, Figure], BeforeValidator(lambda spent: spent if isinstance(spent, dict) else {"all": spent})
    ] = {}
    expert_tokens: list[Figure] = []
    dropped_tokens: Figure = 0


class Span(BaseModel):
    """One event of a profiler's trace that has a duration; times in microseconds."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    name: str
    cat: str = ""
    ts: Annotated[float, Field(ge=-1e18, le=1e18)]
    dur: Annotated[float, Field(ge=0, le=1e15)]


def read_step_log(path: Path) -> list[dict[str, Any]]:
    """The log's lines; `PlanError` names the line that is not one, or in which a part takes longer than the step."""
    found = []
    for number, text in enumerate(_text(path).split("\n"), 1):
        if not text.strip():
            continue
        where = f"{path}, line {number}"
        try:
            line = StepLine.model_validate_json(text)
        except ValidationError as error:
            raise PlanError(f"{where}: {sentence_of(error)}") from None
        spent = {
            "compute_s": line.compute_s,
            "bubble_s": line.bubble_s,
            "communication_s": sum(line.communication_s.values()),
        }
        longest = max(spent, key=spent.__getitem__)
        if spent[longest] > MOST_OF_A_STEP * line.seconds:
            raise PlanError(f"{where}: {longest} is {spent[longest]:g} of a step of {line.seconds:g} seconds")
        found.append(line.model_dump(exclude_unset=True))
    if not found:
        raise PlanError(f"{path} holds no step")
    return found


def read_trace(path: Path) -> list[dict[str, Any]]:
    """`from_trace` of the file; `PlanError` when it holds no trace."""
    text = _text(path)
    try:
        return from_trace(json.loads(text))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None
    except RecursionError:
        raise PlanError(f"{path} cannot be read: its objects lie too deep in each other") from None
    except ValueError as error:
        raise PlanError(f"{path} is not JSON: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} cannot be read: byte {error.start} is no UTF-8") from None


def diagnose(
    lines: list[dict[str, Any]], model: Model | None = None, cluster: Cluster | None = None, recompute: str = "none"
) -> Diagnosis:
    """The diagnosis of a step log. With a model and a cluster, MFU and HFU too (the log must have `samples`)."""
    total = sum(line["seconds"] for line in lines)
    by_axis: dict[str, float] = {}
    for line in lines:
        spent = line.get("communication_s", 0.0)
        for axis, seconds in (spent if isinstance(spent, dict) else {"all": spent}).items():
            by_axis[axis] = by_axis.get(axis, 0.0) + seconds / total
    by_axis = {axis: share for axis, share in by_axis.items() if share > 0}
    result = Diagnosis(
        len({line.get("step", i) for i, line in enumerate(lines)}), total / len(lines), sum(by_axis.values()), by_axis
    )
    if any("bubble_s" in line for line in lines):
        result.bubble = sum(line.get("bubble_s", 0.0) for line in lines) / total
    stages: dict[int, list[float]] = {}
    for line in lines:
        if "stage" in line and "compute_s" in line:
            stages.setdefault(line["stage"], []).append(line["compute_s"])
    means = [sum(values) / len(values) for values in stages.values()]
    if len(means) > 1 and any(means):
        result.stage_imbalance = max(means) * len(means) / sum(means)
    _experts(lines, result)
    samples = [line["samples"] for line in lines if "samples" in line]
    if model and cluster and samples:
        each = sum(samples) / len(samples)
        peak = result.seconds * cluster.gpus * cluster.peak(cluster.training_dtype)
        result.mfu = model.training_flops(each) / peak
        result.hfu = model.training_flops(each, recompute) / peak
    if result.communication > WATCH:
        result.bound = "communication"
    elif (result.bubble or 0.0) > WATCH:
        result.bound = "the pipeline's bubble"
    result.advice = _advice(result)
    return result


def _experts(lines: list[dict[str, Any]], result: Diagnosis) -> None:
    counted = [line["expert_tokens"] for line in lines if line.get("expert_tokens")]
    if not counted:
        return
    if len({len(tokens) for tokens in counted}) > 1:
        raise PlanError("expert_tokens has different numbers of experts on different lines")
    sums = [sum(column) for column in zip(*counted)]
    if not sum(sums):
        return
    result.expert_imbalance = max(sums) * len(sums) / sum(sums)
    dropped = sum(line.get("dropped_tokens", 0) for line in lines)
    result.dropped = dropped / (sum(sums) + dropped)


def _advice(found: Diagnosis) -> list[str]:
    said = []
    if found.communication > WATCH:
        word = "alarm" if found.communication > ALARM else "watch"
        said.append(
            f"{word}: {found.communication:.0%} of the time is communication; above {WATCH:.0%} the layout is to blame"
        )
        worst = max(found.by_axis, key=lambda axis: found.by_axis[axis])
        said.append({
            "tp": "most of it is tensor parallel: halve tp and double dp, or keep tp inside one fast domain",
            "cp": "most of it is context parallel: halve cp, or pass heads instead of keys and values where heads allow",
            "ep": "most of it is expert exchange: keep ep inside one fast domain, or halve it",
            "dp": "most of it is data parallel: larger or more micro-batches a step, or ZeRO stage 1 instead of 3",
            "pp": "most of it is pipeline transfers: fewer virtual stages, or fewer pipeline stages",
        }.get(worst, "name the axis in the log (communication_s by axis) to see which one to shrink"))  # fmt: skip
    if found.bubble is not None and found.bubble > 0.1:
        said.append(
            f"{found.bubble:.0%} of the time is bubble: more micro-batches, interleaving, or a zero-bubble schedule"
        )
    if found.stage_imbalance is not None and found.stage_imbalance > 1.1:
        said.append(f"the slowest stage takes {found.stage_imbalance:.2f} of the mean: move layers away from it")
    if found.expert_imbalance is not None and found.expert_imbalance > 1.5:
        said.append(
            f"the busiest expert takes {found.expert_imbalance:.2f} of the mean: raise the auxiliary loss or bias the router"
        )
    if found.dropped is not None and found.dropped > 0.01:
        said.append(f"{found.dropped:.1%} of the routed tokens are dropped: raise the capacity factor")
    if found.mfu is not None and found.hfu is not None and found.hfu > 1.2 * found.mfu:
        said.append("a quarter of the work is recomputation: where memory allows, recompute selectively or shard more")
    if not said:
        said.append(
            "bound by computation: larger matrices (micro-batch, less tp) or a lower precision are what is left"
        )
    return said


def from_trace(trace: Any) -> list[dict[str, Any]]:
    """One step-log line of a torch profiler trace: the span of its work, and communication that no computation hides.

    On a GPU the kernels count, on a CPU the top-level operators. `PlanError` names the event that is none.
    """
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        raise PlanError("no torch profiler trace, which is an object with a list traceEvents")
    spans = []
    for number, event in enumerate(events, 1):
        if not isinstance(event, dict):
            raise PlanError(f"event {number} of the trace is no object")
        if (
            event.get("ph") == "X"
            and event.get("cat") in ("kernel", "cpu_op", "user_annotation")
            and event.get("dur", 0) != 0
        ):
            try:
                spans.append(Span.model_validate(event))
            except ValidationError as error:
                raise PlanError(f"event {number} of the trace: {sentence_of(error)}") from None
    kernels = [span for span in spans if span.cat == "kernel"]
    work = kernels or spans
    if not work:
        raise PlanError("the trace holds neither kernels nor operators")
    talk = [span for span in work if _talks(span)]
    talking, computing = (
        _union(talk),
        _union(span for span in work if span.cat != "user_annotation" and not _talks(span)),
    )
    exposed = _length(talking) - _overlap(talking, computing)
    begin, end = min(span.ts for span in work), max(span.ts + span.dur for span in work)
    if not end > begin:
        raise PlanError("the trace's work takes no time")
    return [
        {
            "step": 0,
            "seconds": (end - begin) / 1e6,
            "compute_s": _length(computing) / 1e6,
            "communication_s": exposed / 1e6,
        }
    ]


def _talks(span: Span) -> bool:
    return any(word in span.name.lower() for word in COMMUNICATION)


def _union(spans: Iterable[Span]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted((span.ts, span.ts + span.dur) for span in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _length(spans: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


def _overlap(left: list[tuple[float, float]], right: list[tuple[float, float]]) -> float:
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total
