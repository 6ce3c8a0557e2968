"""Schedules: bubbles equal the closed formulas, memory the published peaks, and every operation happens once."""

import pytest

from distributed.planner.automatic import automatic_schedule
from distributed.planner.errors import PlanError
from distributed.planner.schedules import Op, Schedule, build_schedule
from distributed.planner.simulate import StageCost, closed_bubble_s, simulate

SIZES = [(2, 8), (4, 8), (4, 16), (8, 24), (8, 32)]
ONE = StageCost(1.0, 1.0, 1.0)
SLOW_WEIGHTS = StageCost(1.2, 1.1, 0.9)
EQUAL_INPUTS = StageCost(3.0, 3.0, 2.0)


def chunks(name, virtual):
    return {"interleaved": virtual, "zb-v": 2, "dualpipe-v": 2}.get(name, 1)


def run(name, p, m, cost, virtual=2, p2p=0.0):
    schedule = build_schedule(name, p, m, virtual)
    n = chunks(name, virtual)
    part = StageCost(cost.forward / n, cost.backward_input / n, cost.backward_weight / n)
    return schedule, simulate(schedule, [part] * len(schedule.paths[0]), p2p)


EXACT = [("gpipe", SLOW_WEIGHTS), ("1f1b", SLOW_WEIGHTS), ("interleaved", SLOW_WEIGHTS), ("zb-h1", SLOW_WEIGHTS),
         ("zb-h2", SLOW_WEIGHTS), ("zb-v", ONE),
    ("zb-v", EQUAL_INPUTS), ("dualpipe", EQUAL_INPUTS), ("dualpipe-v", EQUAL_INPUTS)]  # fmt: skip


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize(("name", "cost"), EXACT)
def test_the_bubble_of_equal_stages_equals_the_closed_formula(name, cost, p, m):
    _, timeline = run(name, p, m, cost)
    assert timeline.bubble_s == pytest.approx(closed_bubble_s(name, p, cost, 2), abs=1e-9)


@pytest.mark.parametrize("name", [name for name, _ in EXACT])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_every_micro_batch_passes_every_stage_once_forward_and_once_each_way_back(name, p, m):
    schedule, _ = run(name, p, m, ONE)
    done = [op for order in schedule.orders for slot in order for op in slot]
    split = [op for op in done if op.kind != "D"]
    split += [op._replace(kind=kind) for op in done if op.kind == "D" for kind in "BW"]
    per_path = m // len(schedule.paths)
    expected = {Op(kind, micro, stage, path) for path, ranks in enumerate(schedule.paths) for stage in range(len(ranks))
                for micro in range(per_path) for kind in "FBW"}  # fmt: skip
    assert sorted(split) == sorted(expected)
    for rank, order in enumerate(schedule.orders):
        assert all(schedule.paths[op.path][op.stage] == rank for slot in order for op in slot)


@pytest.mark.parametrize(
    ("name", "peak"), [("gpipe", 24), ("1f1b", 8), ("interleaved", 11.5), ("zb-h1", 8), ("zb-h2", 15), ("zb-v", 8),
                       ("dualpipe", 9), ("dualpipe-v", 8.5)],
)  # fmt: skip
def test_the_peak_of_activations_is_the_published_one(name, peak):
    _, timeline = run(name, 8, 24, ONE)
    assert max(timeline.peak_with_weights) / chunks(name, 2) == peak


def test_zero_bubble_rates_from_the_published_profile_equal_the_published_table():
    # 1.5B, 8 stages, 24 micro-batches: T_F, T_B, T_W and hand-over in ms as the paper profiled them (from memory).
    cost = StageCost(18.522, 18.086, 9.337)
    for name, rate in (("1f1b", 0.2431), ("zb-h1", 0.1585), ("zb-h2", 0.1083)):
        assert run(name, 8, 24, cost, p2p=0.601)[1].bubble_rate == pytest.approx(rate, abs=0.0005)
    _, timeline = automatic_schedule(8, 24, [cost] * 8, 0.601, 16)
    assert timeline.bubble_rate == pytest.approx(0.0433, abs=0.005)


def test_the_automatic_schedule_stays_within_its_memory():
    _, timeline = automatic_schedule(4, 12, [ONE] * 4, 0.1, 4)
    assert max(timeline.peak_stages) <= 4


def test_orders_that_wait_in_a_circle_are_named():
    backward_first = Schedule("bad", (((Op("D", 0, 0),), (Op("F", 0, 0),)),), ((0,),))
    with pytest.raises(PlanError, match="bad: ranks \\[0\\] wait for each other"):
        simulate(backward_first, [ONE])


def test_a_slow_stage_sets_the_pace():
    schedule = build_schedule("1f1b", 4, 16)
    slow = simulate(schedule, [ONE, ONE, StageCost(2.0, 2.0, 2.0), ONE])
    assert slow.makespan_s >= 16 * 6
    assert slow.busy_s[2] == 16 * 6


@pytest.mark.parametrize(
    ("name", "p", "m", "sentence"),
    [("interleaved", 4, 6, "multiples of 4 ranks; there are 6"), ("zb-h2", 4, 6, "at least 7 micro-batches; there are 6"),
     ("dualpipe", 3, 8, "there are 3 ranks and 8"), ("zb-v", 4, 6, "at least 7"), ("nope", 2, 2, "no schedule 'nope'")],
)  # fmt: skip
def test_numbers_that_do_not_suit_a_schedule_get_a_sentence(name, p, m, sentence):
    with pytest.raises(PlanError, match=sentence):
        build_schedule(name, p, m, 2)
