"""Every schedule gives every parameter the gradient of a plain backward, whatever the stages and micro-batches."""

import dataclasses
import time

import pytest
import torch
from torch import nn
from torch.nn import functional

from distributed import LayoutError, ParallelLayout, Rank
from distributed.exchange import alone
from distributed.groups import Group, Mesh
from distributed.pipeline import run_pipeline, stage_layers, stages_of, sum_tied_gradients_
from distributed.pipeline.links import neighbours
from distributed.pipeline.stage import StageWork
from distributed.planner.errors import PlanError
from distributed.planner.schedules import Op, Schedule, Slot, build_schedule
from distributed.planner.timeline import svg
from tests.distributed.pool import pool


def on_ranks(worker, arguments, nproc):
    """Patient: on a busy machine ranks take their time to start."""
    return pool().run(worker, arguments, nproc, timeout_s=60.0)


HIDDEN, WORDS, LENGTH = 6, 11, 5
COSTS = [1.0, 3.0, 1.0, 1.0, 2.0, 1.0, 1.0, 4.0, 1.0, 1.0]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)
        self.scale = nn.Parameter(torch.full((HIDDEN,), 0.5))

    def forward(self, x):
        # `scale` is used twice, so its gradient has two ways in.
        return x * self.scale + self.down(torch.tanh(self.up(self.norm(x)))) * self.scale


class Stage(nn.Module):
    """Some of the blocks; the first one embeds, the last one puts out by the embedding's own matrix."""

    def __init__(self, blocks, words, position, final):
        super().__init__()
        self.blocks = nn.ModuleDict({str(index): block for index, block in blocks})
        self.words, self.position, self.final = words, position, final

    def forward(self, activation, batch):
        x = activation if self.position is None else functional.embedding(batch["ids"], self.words) + self.position
        own = x.new_zeros(())
        for block in self.blocks.values():
            x = block(x)
            own = own + 0.01 * x.square().sum()
        return (x if self.final is None else self.final(x) @ self.words.T), own


def parts() -> dict[str, object]:
    torch.manual_seed(4)
    return {
        "blocks": [Block().double() for _ in COSTS],
        "words": nn.Parameter(torch.randn(WORDS, HIDDEN, dtype=torch.float64)),
        "position": nn.Parameter(torch.randn(LENGTH, HIDDEN, dtype=torch.float64)),
        "final": nn.LayerNorm(HIDDEN).double(),
    }


def stage(made: dict, runs: list[range], index: int) -> Stage:
    first, last = index == 0, index == len(runs) - 1
    return Stage(
        [(layer, made["blocks"][layer]) for layer in runs[index]], made["words"] if first or last else None,
        made["position"] if first else None, made["final"] if last else None,
    )  # fmt: skip


def batches(sizes: list[int]) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [
        {"ids": torch.randint(WORDS, (n, LENGTH), generator=generator), "next": torch.randint(WORDS, (n, LENGTH), generator=generator)}
        for n in sizes
    ]  # fmt: skip


def cross_entropy(logits, batch):
    return functional.cross_entropy(logits.flatten(0, 1), batch["next"].flatten(), reduction="sum")


def names(made: dict) -> dict[str, nn.Parameter]:
    found = {"words": made["words"], "position": made["position"]}
    found |= {f"final.{name}": parameter for name, parameter in made["final"].named_parameters()}
    for layer, block in enumerate(made["blocks"]):
        found |= {f"{layer}.{name}": parameter for name, parameter in block.named_parameters()}
    return found


def plain(sizes: list[int]) -> tuple[float, dict[str, torch.Tensor]]:
    made = parts()
    whole = stage(made, [range(len(COSTS))], 0)
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches(sizes):
        logits, own = whole(None, batch)
        total = total + cross_entropy(logits, batch) + own
    total.backward()
    return total.item(), {name: parameter.grad for name, parameter in names(made).items()}


@dataclasses.dataclass(frozen=True)
class Case:
    schedule: str
    sizes: tuple[int, ...]
    virtual: int = 1
    fault: str = ""
    announced: bool = False


def weights_last(order: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """The same operations with all weight gradients at the end."""
    return tuple(sorted(order, key=lambda slot: slot[0].kind == "W"))


def piped(rank: Rank, cases: list[Case]) -> list[dict]:
    group = Mesh(ParallelLayout(pp=rank.world_size), rank).group("pp")
    results = []
    for case in cases:
        schedule = build_schedule(case.schedule, group.size, len(case.sizes), case.virtual)
        runs = stage_layers(COSTS, len(schedule.paths[0]), first=0.5, last=1.0)
        made = parts()
        held = stages_of(schedule, group.index)
        modules = {index: stage(made, runs, index) for index in held}
        if case.fault == "weights last":
            schedule = dataclasses.replace(schedule, orders=tuple(map(weights_last, schedule.orders)))
        if case.fault == "weights forgotten":
            StageWork.backward_weight, kept = lambda self, micro: self._deferred.pop(micro), StageWork.backward_weight
        shape_of = (
            (lambda micro, sizes=case.sizes: ((sizes[micro], LENGTH, HIDDEN), torch.float64))
            if case.announced
            else None
        )
        result = run_pipeline(schedule, modules, batches(list(case.sizes)), cross_entropy, group, shape_of=shape_of)
        if case.fault == "weights forgotten":
            StageWork.backward_weight = kept
        ends = sorted({schedule.paths[0][0], schedule.paths[0][-1]})
        mine = made["words"] if group.index in ends else None
        if case.fault != "copies apart":
            sum_tied_gradients_({"words": (ends, mine)}, group)
        own = {id(parameter) for module in modules.values() for parameter in module.parameters()}
        timeline = result.timeline(group)
        results.append({
            "loss": result.loss_sum, "layers": [len(runs[index]) for index in held],
            "gradients": {name: p.grad for name, p in names(made).items() if id(p) in own and p.grad is not None},
            "order": [event.ops for event in result.events] == [(op,) for slot in schedule.orders[group.index] for op in slot],
            "held": result.held, "deferred": result.deferred, "bubble": timeline.bubble_rate, "drawn": svg(timeline).count("<rect"),
            "ends_after_start": all(e.end >= e.start for rank_events in timeline.events for e in rank_events),
        })  # fmt: skip
    return results


UNEVEN = (3, 1, 4, 2, 1, 5, 2, 1)
CASES = {
    2: [Case("gpipe", UNEVEN), Case("1f1b", UNEVEN), Case("1f1b", (3,)), Case("interleaved", UNEVEN, 2),
        Case("zb-h1", UNEVEN), Case("zb-h2", UNEVEN), Case("zb-v", UNEVEN, announced=True),
        Case("zb-v", UNEVEN), Case("dualpipe-v", UNEVEN)],
    4: [Case("gpipe", (2, 3)), Case("1f1b", (2, 3)), Case("1f1b", UNEVEN[:5]), Case("interleaved", UNEVEN, 2),
        Case("interleaved", UNEVEN, 2, announced=True), Case("zb-h1", UNEVEN), Case("zb-h2", UNEVEN[:7]),
        Case("zb-v", UNEVEN), Case("dualpipe-v", UNEVEN)],
}  # fmt: skip


def apart(results: list[dict], sizes: tuple[int, ...]) -> float:
    total, wanted = plain(list(sizes))
    seen, worst = set(), 0.0
    for found in results:
        worst = max(worst, abs(found["loss"] - total))
        for name, gradient in found["gradients"].items():
            seen.add(name)
            worst = max(worst, float((gradient - wanted[name]).abs().max()))
    return worst if seen == set(wanted) else float("inf")


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_gradient_is_that_of_a_plain_backward_under_every_schedule(ranks: int):
    everyone = on_ranks(piped, (CASES[ranks],), ranks)
    for number, case in enumerate(CASES[ranks]):
        results = [of_rank[number] for of_rank in everyone]
        assert apart(results, case.sizes) < 1e-9, case
        assert all(found["order"] and found["ends_after_start"] for found in results), case
        assert sum(sum(found["layers"]) for found in results) == len(COSTS)
        assert all(0 <= found["bubble"] < 1 and found["drawn"] >= 2 * len(case.sizes) * ranks for found in results)
        copies = [found["gradients"]["words"] for found in results if "words" in found["gradients"]]
        assert all(torch.equal(copies[0], copy) for copy in copies), f"tied copies differ under {case}"


@pytest.mark.parametrize("fault", ["weights forgotten", "copies apart"])
def test_lost_weight_gradients_and_untied_copies_would_be_caught(fault: str):
    results = [of_rank[0] for of_rank in on_ranks(piped, ([Case("zb-h1", UNEVEN, fault=fault)],), 2)]
    assert apart(results, UNEVEN) > 1e-3


def test_what_is_kept_does_not_grow_with_the_number_of_micro_batches():
    names_ = [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 1), ("dualpipe-v", 1)]
    cases = [Case(name, (1,) * m, virtual) for name, virtual in names_ for m in (6, 12)]
    for of_rank in on_ranks(piped, (cases,), 2):
        for few, many in zip(of_rank[0::2], of_rank[1::2]):
            assert (few["held"], few["deferred"]) == (many["held"], many["deferred"])
    gpipe = on_ranks(piped, ([Case("gpipe", (1,) * m) for m in (6, 12)],), 2)[0]
    assert [found["held"] for found in gpipe] == [6, 12], "the measure would not see growth"
    late = on_ranks(piped, ([Case("zb-h1", (1,) * m, fault="weights last") for m in (6, 12)],), 2)[0]
    assert [found["deferred"] for found in late] == [6, 12], "the measure would not see a stash that grows"


def test_fewer_micro_batches_than_ranks_run_or_are_refused_at_once():
    begun = time.monotonic()
    for name in ("zb-h1", "zb-h2", "zb-v", "dualpipe-v", "interleaved"):
        with pytest.raises(PlanError, match=r"4.*there are .*3"):
            build_schedule(name, 4, 3, 2)
    assert time.monotonic() - begun < 5
    cases = [Case(name, UNEVEN[:m]) for name in ("1f1b", "gpipe") for m in (1, 2, 3)]
    found = on_ranks(piped, (cases,), 4)
    for number, case in enumerate(cases):
        assert apart([of_rank[number] for of_rank in found], case.sizes) < 1e-9


def test_orders_that_would_wait_for_each_other_are_refused_at_once():
    # Rank 0 wants the first gradient before it sends the second activation, which rank 1 wants before that gradient.
    orders = [[("F", 0), ("D", 0), ("F", 1), ("D", 1)], [("F", 0), ("F", 1), ("D", 0), ("D", 1)]]
    circle = Schedule(
        "by hand", tuple(tuple((Op(kind, micro, rank),) for kind, micro in order) for rank, order in enumerate(orders)),
        ((0, 1),),
    )  # fmt: skip
    begun = time.monotonic()
    for rank in (0, 1):
        with pytest.raises(PlanError, match=r"by hand: ranks \[0, 1\] wait for each other in a circle"):
            run_pipeline(circle, {rank: nn.Identity()}, [1, 2], cross_entropy, Group("pp", (0, 1), rank))
    assert time.monotonic() - begun < 5


def steps(rank: Rank, split: bool, tie: bool) -> torch.Tensor | None:
    """Three steps of a tied model over dp 2 x pp 2; the tied matrix at the end. `tie` false: the fault, no sum of copies."""
    mesh = Mesh(ParallelLayout(dp_replicate=2, pp=2), rank)
    pipe, data = mesh.group("pp"), mesh.group("dp_replicate")
    schedule = build_schedule("zb-h1" if split else "1f1b", 2, 3)
    made = parts()
    runs = stage_layers(COSTS, 2)
    module = stage(made, runs, pipe.index)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        mine = batches([1 + step, 2, 1, 3, 2, 1])[3 * data.index : 3 * data.index + 3]
        run_pipeline(schedule, {pipe.index: module}, mine, cross_entropy, pipe)
        if tie:
            sum_tied_gradients_({"words": ([0, 1], made["words"])}, pipe)
        for parameter in module.parameters():
            data.all_reduce_(parameter.grad)
        optimizer.step()
    return made["words"].detach()


@pytest.mark.parametrize("split", [False, True])
def test_tied_copies_stay_bitwise_equal_over_steps_of_data_and_pipeline_parallel(split: bool):
    first, *others = on_ranks(steps, (split, True), 4)
    assert all(torch.equal(first, other) for other in others)
    first, *others = on_ranks(steps, (split, False), 4)
    assert not all(torch.equal(first, other) for other in others), "copies that are not summed would not be seen"


def test_stages_of_another_rank_are_refused_before_anything_is_sent():
    of_two = Group("pp", (0, 1), 0)
    with pytest.raises(LayoutError, match=r"pipeline rank 0 holds stages \[0\] under 1f1b, not \[1\]"):
        run_pipeline(build_schedule("1f1b", 2, 2), {1: nn.Identity()}, [1, 2], cross_entropy, of_two)
    with pytest.raises(LayoutError, match="is for 2 pipeline ranks; there are 1"):
        run_pipeline(build_schedule("gpipe", 2, 2), {0: nn.Identity()}, [1, 2], cross_entropy, alone())
    with pytest.raises(LayoutError, match="is for 3 micro-batches; there are 2"):
        run_pipeline(build_schedule("gpipe", 1, 3), {0: nn.Identity()}, [1, 2], cross_entropy, alone())
    with pytest.raises(LayoutError, match="dualpipe holds every stage twice"):
        run_pipeline(build_schedule("dualpipe", 2, 4), {0: nn.Identity()}, [1] * 4, cross_entropy, of_two)


def test_nccl_without_a_group_for_each_direction_is_refused_rather_than_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.distributed.get_backend", lambda handle: "nccl")
    group = Group("pp", (0, 1), 0, handle=object())
    with pytest.raises(LayoutError, match="over NCCL need a group for each direction"):
        run_pipeline(build_schedule("gpipe", 2, 2), {0: nn.Identity()}, [1, 2], cross_entropy, group)


def test_links_join_every_rank_to_both_its_neighbours_each_way():
    assert neighbours(2) == [(0, 1), (1, 0)] and neighbours(1) == []
    assert neighbours(4) == [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (3, 2)]


def test_stages_are_cut_by_cost():
    assert [len(run) for run in stage_layers([1, 1, 1, 1, 4], 2)] == [4, 1]
    assert [len(run) for run in stage_layers([1.0] * 6, 2, last=4.0)] == [5, 1]
    with pytest.raises(PlanError, match="3 layers do not fill 4 stages"):
        stage_layers([1.0] * 3, 4)
