"""This module's parallel layouts beside PyTorch's own, on one model, in one run: `python -m benchmarks.distributed`.

Step time and memory beside DDP, fully_shard, DTensor and pipelining; weak scaling; bytes beside their formulas; zig-zag
beside contiguous ring attention; bubbles beside closed formulas. `--device cuda`: what one GPU makes of the model instead.
`--case TEXT`: only step time and memory of what is named so, such as "dp_replicate, 4 ranks"; not kept.
"""

import dataclasses
import statistics

import torch

from benchmarks.beside_torch import one_gpu
from benchmarks.beside_torch.bubbles import Bubble
from benchmarks.beside_torch.on_ranks import Plan, cases, compare_some, measure_all
from benchmarks.beside_torch.ring import Ring
from benchmarks.beside_torch.scaling import Scaling
from benchmarks.beside_torch.traffic import LAYOUTS, Sent
from benchmarks.beside_torch.workload import Beside, Case, Workload
from benchmarks.claims import Claim, Result, run
from contracts.errors import BadInput
from distributed import launch

RATIO = 1.05
_SAME_LOSS = 1e-5

_NO_GPU = ("tokens/s and MFU of a causal transformer in bf16 on one GPU, compiled and not, fused and eager attention: "
           "this machine has no CUDA device (`--device cuda` where there is one)")  # fmt: skip


def measure(quick: bool, device: str = "cpu", case: str | None = None) -> Result:
    """Every axis beside its peer on 2 and 4 gloo ranks of one thread; with `device` "cuda", one GPU's speed alone; with `case`
    no more than step time and memory of the comparisons whose name has it."""
    if device not in ("cpu", "cuda"):
        raise BadInput(f"--device is {device!r}; it is cpu or cuda")
    result = Result()
    if device == "cuda":
        result.part = device
        _one_gpu(result, quick)
        return result
    work = Workload(layers=4, length=32) if quick else Workload()
    # A batch a rank of the usual size: with few rows the gradients' bytes are most of a step.
    full = dataclasses.replace(work, samples=4 * work.samples)
    plans = {
        2: Plan(work, 3, full, 3, 256, 2, 8, 64, 2) if quick else Plan(work, 15, full, 10, 1024, 8, 8, 256, 8),
        4: Plan(work, 8, full, 0, 1024, 5, 0, 0, 0),
    }
    result.sizes = {"parameters": sum(p.numel() for p in work.model().parameters()), "threads_a_rank": 1,
                    "layouts_of_bytes": {str(ranks): texts for ranks, texts in LAYOUTS.items()},
                    "plans": {str(ranks): dataclasses.asdict(plan) for ranks, plan in plans.items()}}  # fmt: skip
    sent: list[Sent] = []
    if case is not None:
        result.kept = False
        return _some(result, plans, case)
    for ranks in (2,) if quick else (2, 4):
        found = launch(measure_all, (plans[ranks],), ranks, timeout_s=120.0)[0]
        for one, beside in found.cases:
            result.claims += _beside_torch(one, beside, ranks)
        sent += found.sent
        result.claims += _ring(found.ring, ranks, plans[ranks].ring_tokens)
        if found.scaling is not None:
            result.claims.append(_scaling(found.scaling))
        result.claims += [claim for bubble in found.bubbles for claim in _bubbles(bubble, plans[ranks])]
    result.claims += _traffic(sent)
    if not torch.cuda.is_available():
        result.elsewhere.append(_NO_GPU)
    return result


def _some(result: Result, plans: dict[int, Plan], text: str) -> Result:
    """Step time and memory of the comparisons called so."""
    names = {ranks: [f"{case.name}, {ranks} ranks" for case in cases(plan.work, ranks)] for ranks, plan in plans.items()}
    known = [name for several in names.values() for name in several]
    if not any(text in name for name in known):
        raise BadInput(f"--case is {text!r}, which is part of none of {'; '.join(known)}")
    for ranks, plan in plans.items():
        numbers = [number for number, name in enumerate(names[ranks]) if text in name]
        if numbers:
            for one, beside in launch(compare_some, (plan, numbers), ranks, timeout_s=120.0)[0]:
                result.claims += _beside_torch(one, beside, ranks)
    return result


def _beside_torch(case: Case, beside: Beside, ranks: int) -> list[Claim]:
    if beside.apart > _SAME_LOSS:
        raise RuntimeError(
            f"{case.name} and {case.peer} are not the same training: first losses are {beside.apart:.1e} apart"
        )
    at = f"{case.name}, {ranks} ranks"
    ours_ms, theirs_ms = (1e3 * statistics.median(seconds) for seconds in (beside.ours_s, beside.theirs_s))
    return [
        Claim(f"step: {at}, median of pairs", beside.ratio, "of the peer's time",
              f"{case.peer} ({theirs_ms:.0f} ms, here {ours_ms:.0f} ms)", 1.0, f"at most {RATIO}", beside.ratio <= RATIO),
        Claim(f"peak memory: {at}", beside.ours_mib, "MiB", case.peer, beside.theirs_mib, "no more",
              beside.ours_mib <= beside.theirs_mib),
    ]  # fmt: skip


def _traffic(found: list[Sent]) -> list[Claim]:
    """A claim an axis, met when every layout's bytes are equal one by one."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for sent in found:
        for axis in {**sent.counted, **sent.formula}:
            pairs.setdefault(axis, []).append((sent.counted.get(axis, 0.0), sent.formula.get(axis, 0.0)))
    return [Claim(f"bytes a rank sends over {axis}, a step of each of {len(these)} layouts", sum(one for one, _ in these), "bytes",
                  "formula", sum(other for _, other in these), "equal", all(one == other for one, other in these))
            for axis, these in sorted(pairs.items())]  # fmt: skip


def _ring(found: Ring, ranks: int, tokens: int) -> list[Claim]:
    zigzag, contiguous = (max(found.work[name]) * ranks / sum(found.work[name]) for name in ("zig-zag", "contiguous"))
    at = f"causal ring attention, {ranks} ranks"
    return [
        Claim(f"{at}: multiply-adds of the busiest rank, zig-zag", zigzag, "of the mean", "contiguous", contiguous, "even",
              zigzag <= 1.001),
        Claim(f"{at}, {tokens} tokens: step, zig-zag", found.seconds["zig-zag"] * 1e3, "ms", "contiguous",
              found.seconds["contiguous"] * 1e3),
    ]  # fmt: skip


def _scaling(found: Scaling) -> Claim:
    return Claim("weak scaling of dp_replicate, 1 to 2 ranks", 100 * found.together, "% of one rank's speed",
                 "two processes that never speak (this machine's floor)", 100 * found.apart, "at least 85",
                 found.together >= 0.85)  # fmt: skip


def _bubbles(one: Bubble, plan: Plan) -> list[Claim]:
    at = f"bubble of {one.name}, 2 ranks, {plan.bubble_micro_batches} micro-batches"
    claims = [Claim(at, 100 * one.measured, "% of the step", "simulated at each stage's measured times", 100 * one.simulated,
                    "within 5 points", abs(one.measured - one.simulated) <= 0.05)]  # fmt: skip
    if one.closed is not None:
        claims.append(Claim(at, 100 * one.measured, "% of the step", "closed formula", 100 * one.closed, "within 5 points",
                            abs(one.measured - one.closed) <= 0.05))  # fmt: skip
    return claims


def _one_gpu(result: Result, quick: bool) -> None:
    if not torch.cuda.is_available():
        result.not_measured.append(_NO_GPU)
        return
    work = dataclasses.replace(one_gpu.GPU, layers=2, samples=4) if quick else one_gpu.GPU
    result.sizes = {"model": dataclasses.asdict(work), "device": torch.cuda.get_device_name()}
    found = {(one.attention, one.compiled): one for one in one_gpu.speeds("cuda", work, 5 if quick else 20)}
    for (attention, compiled), speed in found.items():
        name = f"one GPU, bf16, {attention} attention, {'compiled' if compiled else 'not compiled'}"
        result.claims.append(Claim(f"{name}: speed", speed.tokens_per_s, "tokens/s", "eager attention, not compiled",
                                   found["eager", False].tokens_per_s))  # fmt: skip
        if speed.mfu is None:
            result.not_measured.append(f"MFU of {name}: the peak of {result.sizes['device']} is not known here")
        else:
            result.claims.append(Claim(f"{name}: MFU", 100 * speed.mfu, "% of the bf16 peak"))


if __name__ == "__main__":
    run("distributed", measure, {"device": "cpu (all but one GPU's speed) or cuda (that alone)",
                                 "case": "only the comparisons whose name has this, e.g. 'ZeRO 3, 4 ranks'; not kept"})  # fmt: skip
