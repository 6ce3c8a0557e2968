"""The MMoE is the same model whether its experts lie over tp or ep, its states in shards, its batch in pieces."""

import pytest

from contracts.errors import BadInput
from distributed import LayoutError, ParallelLayout, Rank, TrainResult
from distributed.mesh import ModelSizes, problems
from ranking.fit import fit
from ranking.layouts import TrainingLayout, asked_layout
from ranking.sequence.fit import layout_sizes
from ranking.settings import RankerSettings, SequenceSettings
from tests.distributed.pool import pool
from tests.ranking.sequence_problem import problem

SETTINGS = RankerSettings(
    experts=4, expert_width=8, tower_width=4, embedding_dim=4, epochs=2, batch_size=33, learning_rate=1e-2, clip_norm=0.3,
    tries=1, patience=9,
)  # fmt: skip
CASES = {
    2: [("tp=2", {}), ("dp_shard=2", {"ep": 2}), ("dp_shard=2", {"ep": 2, "zero": 3, "micro_batches": 3}), ("dp_shard=2", {"zero": 2})],
    4: [("dp_shard=2,tp=2", {"zero": 3}), ("dp_replicate=2,dp_shard=2", {"ep": 2}), ("dp_shard=4", {"ep": 4}), ("tp=4", {})],
}  # fmt: skip


def fit_under(rank: Rank, layouts: list[TrainingLayout]) -> list[TrainResult]:
    made = problem()
    return [fit(rank, made.train.tasks, made.validation.tasks, made.slots_C, SETTINGS, layout)[1] for layout in layouts]


def _layouts(ranks: int) -> list[TrainingLayout]:
    return [TrainingLayout(ParallelLayout.parse(axes), **how) for axes, how in CASES[ranks]]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_layout_trains_the_model_of_one_process(ranks: int):
    (one,) = fit_under(Rank(), [TrainingLayout()])
    assert one.largest_norm > SETTINGS.clip_norm, "clipping should act"
    for results in pool().run(fit_under, (_layouts(ranks),), ranks, timeout_s=60.0, deadline_s=280.0):
        for layout, result in zip(_layouts(ranks), results, strict=True):
            layout.refuse_unless_mmoe(SETTINGS.experts)
            apart = {name: (result.state[name] - one.state[name]).abs().max().item() for name in one.state}
            assert max(apart.values()) < 1e-9, f"{layout}: {max(apart, key=lambda name: apart[name])}"
            for alone, together in zip(one.history, result.history, strict=True):
                assert alone == pytest.approx(together, abs=1e-9), layout


@pytest.mark.parametrize(
    ("axes", "how", "sentence"),
    [
        ("cp=2", {}, "no sequence to cut; use --model sequence"),
        ("pp=2", {}, "no layers to cut; use --model sequence"),
        ("dp_shard=2,tp=3", {}, "4 experts do not divide over tp=3; the nearest legal layout is dp_shard=3,tp=2"),
        ("dp_shard=2,tp=2", {"ep": 2}, "lie over one of the two"),
        ("dp_shard=4", {"ep": 3}, "ep=3 must divide 4 experts and dp_shard=4; the nearest legal is ep=1"),
        ("dp_replicate=2", {"ep": 2}, "ep=2 must divide 4 experts and dp_shard=1; the nearest legal is ep=1"),
        ("dp_shard=2", {"recompute": "full"}, "recompute=full: the mmoe model has no layers"),
        ("dp_shard=2", {"schedule": "gpipe"}, "schedule=gpipe: the mmoe model has no layers"),
        (
            "dp_replicate=2",
            {"zero": 3},
            "zero=3 has nothing to shard over: dp_shard x cp of layout dp_replicate=2 is 1",
        ),
        ("dp_shard=2", {"ep": 10**12}, "the nearest legal is ep=2"),
    ],
)
def test_what_an_mmoe_cannot_do_is_refused_with_the_numbers(axes: str, how: dict, sentence: str):
    with pytest.raises(LayoutError, match=sentence):
        TrainingLayout(ParallelLayout.parse(axes), **how).refuse_unless_mmoe(4)


@pytest.mark.parametrize(
    ("axes", "how", "sentence"),
    [
        (
            "tp=8",
            {},
            "4 heads do not divide over tp=8.*4 experts of the dense mixture.*nearest legal layout is pp=2,tp=4",
        ),
        ("pp=4", {}, "2 layers are fewer than pp=4 stages; the nearest legal layout is"),
        (
            "dp_shard=2",
            {"ep": 4},
            "ep=4 does not divide dp_shard x cp = 2; the nearest legal layout is dp_shard=2 with ep=2",
        ),
        ("pp=2", {"schedule": "zb-v"}, "zb-v on 2 ranks needs at least 3 micro-batches; there are 1"),
        ("pp=2", {"schedule": "zb-v", "micro_batches": 4}, "2 layers are fewer than the 4 stages of schedule zb-v"),
        (
            "pp=2",
            {"schedule": "zb-h1", "micro_batches": 4, "recompute": "selective"},
            "whose backward comes in two parts",
        ),
        ("dp_shard=2", {"schedule": "gpipe"}, "schedule=gpipe: there is no pipeline without pp above 1"),
        ("pp=2", {"schedule": "none"}, "no schedule 'none'"),
        *(("pp=2", {"zero": zero}, f"zero={zero} has nothing to shard over: .* pp=2 is 1") for zero in (1, 2, 3)),
        ("tp=2", {"ep_over_tp": True}, "ep_over_tp lays experts over tp ranks too, but ep=1 and tp=2"),
        ("dp_shard=2", {"ep_over_tp": True, "ep": 2}, "but ep=2 and tp=1; both must be above 1"),
        *(
            (
                "pp=2",
                {"schedule": name, "virtual": 2, "micro_batches": 4},
                f"schedule={name} with virtual=2: interleaved",
            )
            for name in ("1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe-v")
        ),
        ("pp=2", {"schedule": "interleaved", "micro_batches": 4}, "schedule=interleaved with virtual=1: interleaved"),
        (
            "pp=2",
            {"schedule": "interleaved", "virtual": 10**12, "micro_batches": 4},
            "2 layers are fewer than the 2000000000000 stages",
        ),
        (
            "dp_shard=2",
            {"ep": 10**12},
            "ep=1000000000000 does not divide .*; the nearest legal layout is dp_shard=2 with ep=2",
        ),
        ("pp=960", {}, "2 layers are fewer than pp=960 stages; the nearest legal layout is"),
        (
            "cp=4",
            {"ulysses": 3},
            "ulysses=3 must divide cp=4 and the 4 heads of a tp rank; the nearest legal is ulysses=1",
        ),
    ],
)
def test_what_a_sequence_ranker_cannot_do_is_refused_with_the_numbers(axes: str, how: dict, sentence: str):
    with pytest.raises(LayoutError, match=sentence):
        TrainingLayout(ParallelLayout.parse(axes), **how).refuse_unless_sequence(layout_sizes(SequenceSettings()))


@pytest.mark.parametrize(
    ("axes", "most"), [("", 128), ("pp=2", 128), ("dp_replicate=2", 64), ("dp_shard=3", 43), ("dp_replicate=2,dp_shard=2,tp=2", 32)]
)  # fmt: skip
@pytest.mark.parametrize("more", [1, 10**12])
def test_more_micro_batches_than_a_data_rank_has_samples_are_refused(axes: str, most: int, more: int):
    layout = ParallelLayout.parse(axes)
    TrainingLayout(layout, micro_batches=most).refuse_more_pieces_than(128)
    with pytest.raises(LayoutError, match=rf"share a batch of 128: there can be at most {most}$"):
        TrainingLayout(layout, micro_batches=most + more).refuse_more_pieces_than(128)


@pytest.mark.parametrize(
    ("given", "nproc", "sentence"),
    [
        ({"RANK": "0", "WORLD_SIZE": "abc"}, 1, "WORLD_SIZE is 'abc'"),
        ({"RANK": "5", "WORLD_SIZE": "1"}, 1, "RANK is '5'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, 3, "3 ranks were asked for, but the launcher of this process started 2"),
        ({}, 10**12, "cannot start 1000000000000 ranks on one machine"),
    ],
)
def test_a_place_that_cannot_be_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], nproc: int, sentence: str
):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=sentence):
        asked_layout(None, nproc)


def test_ep_without_sparse_experts_is_refused():
    sizes = ModelSizes(heads=4, kv_heads=4, layers=2, vocabulary=0, feed_forward=8, sequence=16)
    assert problems(ParallelLayout(dp_shard=2), sizes, ep=2) == ["ep=2, but the model has no sparse experts"]
