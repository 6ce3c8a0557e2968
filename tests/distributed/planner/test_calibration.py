"""Calibration finds the constants that made the timings, refuses timings that say nothing, and ranks share cores fairly."""

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner

from distributed import Rank
from distributed.planner import fit, sweeps
from distributed.planner.collectives import collective_s
from distributed.planner.crowded import simulate_crowded
from distributed.planner.errors import PlanError
from distributed.planner.estimate import Estimator
from distributed.planner.layout import parse_layout
from distributed.planner.machines import Cluster, Kernels, cluster_from, load_cluster
from distributed.planner.models import Experts, Model
from distributed.planner.running import layer_work, products_s
from distributed.planner.schedules import build_schedule
from distributed.planner.simulate import StageCost, simulate
from feedloop.cli import main

KERNELS = Kernels(layer_forward_us=500, layer_backward_us=700, value_forward_ns=0.5, value_backward_ns=0.8, score_forward_ns=6,
                  score_backward_ns=9, ring_forward_ns=10, ring_backward_ns=15, sparse_forward_us=900, sparse_backward_us=1100,
                  routed_forward_ns=2, routed_backward_ns=5, end_us=300, logit_ns=5, update_us=100, update_ns=4, split=1.25)  # fmt: skip
PLANTED = cluster_from({
    "tflops": {"fp32": 0.1, "fp64": 0.05, "bf16": 0.2}, "memory_gib": 8.0, "memory_gb_per_s": 20.0, "cores": 2,
    "kernels": dataclasses.asdict(KERNELS),
    "efficiency": {"matmul": 1.0, "half_size": 12.0, "memory": 1.0, "attention": 0.5, "tp_overlap": 0.0, "dp_overlap": 0.25,
                   "pp_overlap": 0.0},
    "levels": [{"name": "loopback", "ranks": 0, "gb_per_s": 1.5, "alpha_us": 300.0, "efficiency": 1.0,
                "measured": [{"kind": kind, "alpha_us": 300.0 + 50 * i, "gb_per_s": 1.5 - 0.2 * i}
                             for i, kind in enumerate(sweeps.KINDS)]}],
}, 2, "planted")  # fmt: skip


def planted_points(noise: float = 0.0, seed: int = 0) -> fit.Points:
    """The sweeps' timings on a machine of these constants, each off by up to `noise` of itself."""
    seconds = {}
    for kind in PLANTED.tflops:
        for shape in sweeps.PRODUCTS if kind == "fp32" else sweeps.PRODUCTS[:3]:
            flops, small = 2.0 * np.prod(shape), sum(1 / size for size in shape)
            seconds["product", kind, *shape] = flops * (1 + 12 * small) / (PLANTED.tflops[kind] * 1e12)
    seconds["memory", 32_000_000] = 32_000_000 / 20e9
    seconds["attention", 4, 512, 64] = 2.0 * 4 * 512**2 * 64 / 0.05e12
    for name, shapes in (("layer", sweeps.LAYERS), ("ring", sweeps.LAYERS[1:]), ("sparse", sweeps.SPARSE)):
        for shape in shapes:
            seconds |= {(name, *shape, part): planted_layer(name, shape, part) for part in (0, 1)}
    for hidden, vocabulary, samples, length in sweeps.ENDS:
        product = 3 * products_s(((1.0, samples * length, hidden, vocabulary),), PLANTED, "fp32")
        seconds["end", hidden, vocabulary, samples, length] = product + 300e-6 + 5e-9 * samples * length * vocabulary
    seconds |= {("update", n): 100e-6 + 4e-9 * n for n in sweeps.UPDATES}
    seconds |= {("split", 0): 4e-3, ("split", 1): 5e-3}
    for ranks, world in ((2, 2), (4, 4), (2, 4)):
        machine = dataclasses.replace(PLANTED, gpus=world)
        for kind in sweeps.KINDS:
            for size in sweeps.MESSAGES:
                seconds["collective", kind, ranks, world, size] = collective_s(kind, size, (ranks,), machine)
        seconds |= {
            ("overlap", "collective", world): 4e-3,
            ("overlap", "products", world): 9e-3,
            ("overlap", "both", world): 12e-3,
        }
    rng = np.random.default_rng(seed)
    return {key: (value * (1 + noise * rng.uniform(-1, 1)), noise) for key, value in seconds.items()}


def planted_layer(name: str, shape: tuple[int, ...], part: int) -> float:
    hidden, heads, wide, samples, length = shape
    experts = Experts(sweeps.EXPERTS, sweeps.TOP_K, wide) if name == "sparse" else None
    model = Model("planted", 1, hidden, heads, length, 64, ffn=wide, gated=True, platform=True, experts=experts)
    work = layer_work(model, parse_layout(f"micro={samples}"), name == "sparse")
    k, share, direction = KERNELS, 0.75 if name == "ring" else 1.0, ("forward", "backward")[part]

    def price(what: str) -> float:
        return getattr(k, what.format(direction))

    total = (1 + part) * products_s(work.products, PLANTED, "fp32")
    total += 1e-6 * price("layer_{}_us") + 1e-9 * price("value_{}_ns") * work.values
    total += 1e-9 * share * work.scores * price("ring_{}_ns" if name == "ring" else "score_{}_ns")
    if name == "sparse":
        total += 1e-6 * price("sparse_{}_us") + 1e-9 * price("routed_{}_ns") * work.routed
    return total


def test_the_constants_that_made_the_timings_are_found():
    found = cluster_from({"name": "x", **fit.fitted("x", planted_points(), 2, 8.0)}, 2, "x")
    assert found.tflops == pytest.approx(PLANTED.tflops, rel=1e-3)
    assert dataclasses.asdict(found.efficiency) == pytest.approx(dataclasses.asdict(PLANTED.efficiency), rel=1e-3)
    assert dataclasses.asdict(found.kernels) == pytest.approx(dataclasses.asdict(KERNELS), rel=1e-3)
    timed = {one.kind: (one.alpha_us, one.gb_per_s) for one in found.levels[0].measured}
    for one in PLANTED.levels[0].measured:
        assert timed[one.kind] == pytest.approx((one.alpha_us, one.gb_per_s), rel=1e-3)


def test_timings_that_are_off_by_a_tenth_give_layers_that_are_off_by_little():
    found = cluster_from({"name": "x", **fit.fitted("x", planted_points(0.1), 2, 8.0)}, 2, "x")
    model = Model("m", 4, 256, 4, 256, 512, ffn=1024, gated=True, platform=True)
    for text in ("dp=2", "tp=2", "cp=2,zero=0", "pp=2"):
        layout = parse_layout(text)
        exact, near = (Estimator(model, machine, 8).estimate(layout).step_s for machine in (PLANTED, found))
        assert near == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [(lambda key, value: (value[0], 0.9), "too busy to be calibrated: repeated timings of the same kernels"),
     (lambda key, value: (value[0], 9.0 if key[0] == "collective" else 0.0), "timings of the same collectives"),
     (lambda key, value: (1e-3 if key[0] == "product" else value[0], 0.0), "get no faster with their size|off the best fit"),
     (lambda key, value: (value[0] * (40 if key[0] == "collective" and key[-1] in (2**10, 2**20) else 1), 0.0), "its collectives are off")],
)  # fmt: skip
def test_timings_that_say_nothing_are_refused_in_one_sentence(spoil, sentence):
    points = {key: spoil(key, value) for key, value in planted_points().items()}
    with pytest.raises(PlanError, match=sentence):
        fit.fitted("x", points, 2, 8.0)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v"])
def test_with_a_core_for_every_rank_sharing_changes_nothing(name):
    schedule = build_schedule(name, 4, 8, 2)
    costs = [StageCost(1.0 + 0.1 * i, 1.2, 0.8) for i in range(len(schedule.paths[0]))]
    alone, shared = simulate(schedule, costs, 0.05), simulate_crowded(schedule, costs, 16, 0.05)
    assert shared.makespan_s == pytest.approx(alone.makespan_s)
    assert [[e.ops for e in rank] for rank in shared.events] == [[e.ops for e in rank] for rank in alone.events]


def test_on_one_core_a_bubble_costs_nothing_and_all_work_adds_up():
    schedule, cost = build_schedule("1f1b", 4, 4), StageCost(1.0, 1.0, 1.0)
    assert simulate_crowded(schedule, [cost] * 4, 1).makespan_s == pytest.approx(4 * 4 * 3.0)
    half = simulate_crowded(schedule, [cost] * 4, 2).makespan_s
    assert 4 * 4 * 3.0 / 2 <= half < simulate_crowded(schedule, [cost] * 4, 1).makespan_s


def test_ranks_that_share_cores_take_so_many_times_as_long():
    model = Model("m", 4, 256, 4, 256, 512, ffn=1024, gated=True, platform=True)
    two, four = (dataclasses.replace(PLANTED, gpus=world) for world in (2, 4))
    assert (two.crowd, four.crowd) == (1, 2)
    compute = [
        Estimator(model, machine, 8).estimate(parse_layout(f"dp={machine.gpus}")).seconds["compute"]
        for machine in (two, four)
    ]
    assert compute[1] == pytest.approx(compute[0])


def test_a_calibrated_machine_is_found_by_its_name(tmp_path):
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines" / "mine.json").write_text(json.dumps(fit.fitted("mine", planted_points(), 2, 8.0)))
    assert isinstance(load_cluster("mine", 4, tmp_path / "machines"), Cluster)
    (tmp_path / "m.json").write_text(
        json.dumps({"layers": 2, "hidden": 128, "heads": 4, "sequence": 64, "platform": True})
    )
    ask = [
        "plan",
        "--workspace",
        str(tmp_path),
        "--model",
        str(tmp_path / "m.json"),
        "--cluster",
        "mine",
        "--gpus",
        "2",
        "--json",
    ]
    done = CliRunner().invoke(main, ask)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["cluster"]["name"] == "mine"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [(["--calibrate", "--cluster", "h100"], "give one of them"), (["--calibrate", "--ranks", "1"], "cannot be timed"),
     (["--calibrate", "--machine-file", "x.toml"], "ends in .json"), (["--machine-file", "x.json"], "--calibrate keeps"),
     ([], "needs --model and --cluster")],
)  # fmt: skip
def test_what_cannot_be_calibrated_is_one_sentence_and_nothing_is_kept(more, sentence, tmp_path):
    done = CliRunner().invoke(main, ["plan", "--workspace", str(tmp_path), *more])
    assert done.exit_code == 2 and sentence in done.stderr
    assert not list(tmp_path.iterdir())


def test_every_sweep_of_a_rank_times_something(monkeypatch):
    small = {"LAYERS": [(32, 2, 32, 1, 128)], "SPARSE": [(32, 2, 32, 1, 16)], "PRODUCTS": [(16, 16, 16)], "ENDS": [(32, 64, 1, 16)],
             "UPDATES": [1000], "LEAST_S": 1e-4}  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(sweeps, name, value)
    found = sweeps.time_kernels(Rank(), 2)
    assert {key[0] for key in found} == {
        "product",
        "memory",
        "attention",
        "layer",
        "ring",
        "sparse",
        "end",
        "update",
        "split",
    }
    assert all(seconds > 0 for seconds, _ in found.values())


@pytest.mark.slow
def test_this_machine_is_calibrated_and_then_planned_on_by_its_name(tmp_path):
    file = tmp_path / "machines" / "here.json"
    done = CliRunner().invoke(main, ["plan", "--calibrate", "--ranks", "2", "--machine-file", str(file), "--json"])
    if done.exit_code == 2:
        assert "calibrated" in done.stderr and not file.exists()
        pytest.skip(done.stderr.strip())
    assert done.exit_code == 0, done.output
    here = load_cluster("here", 2, file.parent)
    assert here.kernels is not None and 1e-3 < here.tflops["fp32"] < 100 and here.crowd >= 1
    assert {one.kind for one in here.levels[0].measured} == set(sweeps.KINDS)


def test_a_message_between_ranks_takes_a_core_as_its_operations_do() -> None:
    schedule = build_schedule("1f1b", 2, 4)
    cost = StageCost(1.0, 1.0, 1.0)
    silent = simulate_crowded(schedule, [cost] * 2, 1).makespan_s
    # Four micro-batches cross once in each direction: eight messages, and the one core has nothing else to give.
    assert simulate_crowded(schedule, [cost] * 2, 1, 0.25).makespan_s == pytest.approx(silent + 8 * 0.25)
