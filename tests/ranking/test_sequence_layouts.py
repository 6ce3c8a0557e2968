"""The sequence ranker is the same model under every layout: losses, parameters, AUC to 1e-9, and equal routing."""

import functools

import numpy as np
import pytest
import torch

from distributed import ParallelLayout, Rank, TrainResult
from ranking.layouts import TrainingLayout
from ranking.metrics import auc
from ranking.sequence.fit import layout_sizes, predict
from ranking.sequence.network import build_network
from ranking.settings import SequenceSettings
from tests.distributed.pool import pool
from tests.ranking.sequence_problem import SMALL, fit_under, problem

FOUR_LAYERS = SMALL.model_copy(update={"layers": 4})
DENSE = SMALL.model_copy(update={"sparse_experts": 0})


def _case(axes: str, settings: SequenceSettings = SMALL, **how) -> tuple[TrainingLayout, SequenceSettings]:
    return TrainingLayout(ParallelLayout.parse(axes), **how), settings


TWO_RANKS = [
    _case("dp_shard=2"),
    _case("tp=2"),
    _case("cp=2"),
    _case("pp=2", micro_batches=3),
    _case("dp_shard=2", ep=2, zero=3, micro_batches=2, recompute="full"),
    _case("cp=2", ep=2, ulysses=2),
    _case("tp=2", DENSE),
]
MORE_RANKS = {
    4: [
        _case("pp=4", FOUR_LAYERS, micro_batches=4, schedule="zb-h1"),
        _case("pp=2,dp_shard=2", FOUR_LAYERS, micro_batches=4, schedule="zb-v", ep=2),
        _case("dp_shard=2,cp=2", ep=4, zero=2),
        _case("tp=4"),
        _case("dp_shard=2,tp=2", ep=4, ep_over_tp=True, zero=2),
        _case("pp=2,dp_shard=2", zero=3, micro_batches=2, recompute="full"),
    ],
    8: [
        _case("pp=2,dp_shard=2,tp=2", ep=2, micro_batches=2),
        _case("dp_shard=2,cp=2,tp=2", ep=2, zero=3),
        _case("pp=2,cp=2,tp=2", micro_batches=2),
        _case("dp_replicate=2,dp_shard=2,cp=2", ep=4, zero=2),
    ],
}


@functools.cache
def _alone(settings: SequenceSettings) -> TrainResult:
    return fit_under(Rank(), [(TrainingLayout(), settings)])[0]


def _aucs(result: TrainResult, settings: SequenceSettings) -> np.ndarray:
    made = problem()
    network = build_network(made.rows, made.slots_C, made.train.tasks, settings)
    network.load_state_dict(result.state)
    logits_NT, labels_NT = predict(network, made.validation), made.validation.tasks.labels_NT
    return np.array([auc(labels_NT[:, task], logits_NT[:, task]) for task in (0, 2, 3)])


def _same(cases: list[tuple[TrainingLayout, SequenceSettings]], ranks: int) -> None:
    for layout, settings in cases:
        layout.refuse_unless_sequence(layout_sizes(settings))
    everywhere = pool().run(fit_under, (cases,), ranks, timeout_s=60.0, deadline_s=280.0)
    for number, (layout, settings) in enumerate(cases):
        one = _alone(settings)
        for result in (results[number] for results in everywhere):
            for alone, together in zip(one.history, result.history, strict=True):
                assert alone == pytest.approx(together, abs=1e-9), layout
            assert list(result.state) == list(one.state), layout
            apart = {name: (result.state[name] - one.state[name]).abs().max().item() for name in one.state}
            assert max(apart.values()) < 1e-9, f"{layout}: {max(apart, key=lambda name: apart[name])}"
            assert result.routed == one.routed, layout
        assert np.abs(_aucs(everywhere[0][number], settings) - _aucs(one, settings)).max() < 1e-9, layout


def test_training_moves_clips_and_routes():
    one = _alone(SMALL)
    made = problem()
    fresh = build_network(made.rows, made.slots_C, made.train.tasks, SMALL).state_dict()
    still = {name for name, tensor in one.state.items() if torch.equal(tensor, fresh[name])}
    # Of the router's own bias nothing is learnt, and task 4 has no label.
    assert all("balance_bias_E" in name for name in still), still
    assert one.largest_norm > SMALL.clip_norm and one.steps == 8
    assert sum(one.routed["blocks.0"]) == 2 * 2 * (made.train.there_SK.sum() + (made.train.rows_SC >= 0).sum())


def test_two_ranks_along_any_axis_train_the_model_of_one_process():
    _same(TWO_RANKS, 2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", MORE_RANKS)
def test_axes_together_train_the_model_of_one_process(ranks: int):
    _same(MORE_RANKS[ranks], ranks)
