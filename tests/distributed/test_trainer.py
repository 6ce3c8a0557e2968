"""The training loop gives the same model on any number of ranks, skips broken batches, and keeps its best state."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from distributed import EpochBatches, ParallelLayout, Rank, TrainerSettings, launch
from distributed.sampler import shard
from tests.distributed.pool import pool
from tests.distributed.workers import Network, Problem, fit

SETTINGS = TrainerSettings(epochs=4, batch_size=50, learning_rate=0.02, patience=4, clip_norm=0.5)


def _apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.fixture(scope="module")
def single():
    return fit(Rank(), SETTINGS)


@pytest.mark.parametrize("ranks", [2, 3])
def test_uneven_ranks_give_the_model_of_one_process(single, ranks: int):
    # 203 rows in batches of 50 leave a last batch of 3, which 2 ranks cannot halve.
    results = launch(fit, (SETTINGS,), ranks)
    assert _apart(results[0].state, single.state) < 1e-9
    for one, many in zip(single.history, results[0].history):
        assert one["train"] == pytest.approx(many["train"], abs=1e-9)
        assert one["validation"] == pytest.approx(many["validation"], abs=1e-9)


@pytest.mark.parametrize("layout", [ParallelLayout(dp_shard=2), ParallelLayout(dp_replicate=2, dp_shard=2)], ids=str)
def test_a_sharded_optimizer_gives_the_model_of_one_process(single, layout: ParallelLayout):
    results = pool().run(fit, (SETTINGS, False, None, layout), layout.world_size)
    assert all(_apart(result.state, single.state) < 1e-9 for result in results)
    assert all(_apart(result.state, results[0].state) == 0.0 for result in results)
    broken = pool().run(fit, (SETTINGS, False, 40, layout), layout.world_size)
    assert {result.skipped_steps for result in broken} == {SETTINGS.epochs}


def test_all_ranks_hold_bitwise_the_same_model():
    first, second = launch(fit, (SETTINGS,), 2)
    assert _apart(first.state, second.state) == 0.0 and first.history == second.history


def test_the_mean_of_ranks_means_would_be_caught(single):
    faulty = launch(fit, (SETTINGS, True), 2)[0]
    assert _apart(faulty.state, single.state) > 1e-3


def test_a_nan_batch_is_skipped_on_all_ranks_together_and_counted():
    one, two = launch(fit, (SETTINGS, False, 40), 2)
    assert one.skipped_steps == two.skipped_steps == SETTINGS.epochs
    assert _apart(one.state, two.state) == 0.0
    assert all(torch.isfinite(tensor).all() for tensor in one.state.values())


def test_a_rank_without_rows_takes_part(single):
    tiny = dataclasses.replace(SETTINGS, batch_size=1, epochs=1)
    assert _apart(launch(fit, (tiny,), 2)[0].state, fit(Rank(), tiny).state) < 1e-9


def test_early_stopping_leaves_the_best_state_in_the_module():
    problem, network = Problem(), Network(0)
    seen: list[dict[str, torch.Tensor]] = []

    def validate(module, indices_B):
        # Better until the third epoch, then worse.
        seen.append({name: tensor.clone() for name, tensor in module.state_dict().items()})
        return torch.tensor([[abs(len(seen) - 3) + 1.0, 1.0]])

    from distributed import train

    result = train(
        network, problem.loss, 203, validate, 203, dataclasses.replace(SETTINGS, epochs=20, patience=2), Rank()
    )
    assert result.best_epoch == 2 and len(result.history) == 5
    assert _apart(network.state_dict(), seen[2]) == 0.0 and _apart(result.state, seen[2]) == 0.0
    assert _apart(seen[4], seen[2]) > 0


def test_the_global_batches_do_not_depend_on_the_world_size_and_cover_each_row_once():
    batches = EpochBatches(203, 50, seed=3)
    for indices_B in batches.epoch(1):
        for world_size in (1, 2, 3, 7):
            parts = [shard(indices_B, Rank(index, world_size)) for index in range(world_size)]
            assert np.array_equal(np.concatenate(parts), indices_B)
    assert sorted(np.concatenate(list(batches.epoch(1)))) == list(range(203))
    assert not np.array_equal(next(batches.epoch(0)), next(batches.epoch(1)))


def test_training_that_never_validates_says_so():
    problem = Problem()
    from distributed import train

    with pytest.raises(ValueError, match="no epoch of 4 had a finite validation figure"):
        train(
            Network(0), problem.loss, 203, lambda module, rows: torch.tensor([[math.nan, 1.0]]), 203, SETTINGS, Rank()
        )
