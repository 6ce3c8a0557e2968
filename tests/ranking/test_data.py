"""Samples reach the models only when they are of this feature version, split by time, finite and viewed."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from contracts.errors import BadInput
from contracts.samples import SAMPLES
from contracts.workspace import Workspace
from ranking.data import check_samples, exposure_weights, group_sizes, load_samples, tasks_with_labels
from tests.ranking.synthetic import SLATE, workspace_with


def _with(table: pa.Table, name: str, values: object) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def test_groups_are_counted_from_request_ids_after_unviewed_rows_are_gone(workspace: Workspace):
    samples = load_samples(workspace, "train")
    assert samples.group_sizes_G.sum() == len(samples)
    assert len(samples.group_sizes_G) == len(np.unique(samples.request_ids_N))
    assert samples.group_sizes_G.max() <= SLATE and samples.group_sizes_G.min() < SLATE
    stored = workspace.samples.read(SAMPLES)
    viewed = stored.filter(pc.and_(stored["viewed"], pc.equal(stored["split"], "train")))
    assert len(samples) == viewed.num_rows


def test_a_request_torn_apart_is_not_counted_as_two_groups():
    with pytest.raises(ValueError, match="not together"):
        group_sizes(np.array([1, 1, 2, 1]))


def test_a_random_split_is_refused(folder: Path, small_table: pa.Table, rng: np.random.Generator):
    names = small_table["split"].to_numpy(zero_copy_only=False)
    shuffled = workspace_with(folder, _with(small_table, "split", rng.permutation(names).astype(str)))
    with pytest.raises(
        BadInput, match="train samples lie outside the train window .*a random split of a log leaks the future"
    ):
        check_samples(shuffled)


@pytest.mark.parametrize("version", ["0123456789abcdef", ""])
def test_samples_of_another_feature_version_are_refused(folder: Path, small_table: pa.Table, version: str):
    with pytest.raises(BadInput, match=f"feature version {version or 'unknown'}"):
        check_samples(workspace_with(folder, small_table, feature_version=version))


def test_a_nan_feature_is_named_with_its_row(folder: Path, small_table: pa.Table):
    row = int(np.flatnonzero(small_table["viewed"].to_numpy(zero_copy_only=False))[0])
    values = small_table["tie_likes_14d"].to_numpy().copy()
    values[row] = np.nan
    broken = workspace_with(folder, _with(small_table, "tie_likes_14d", values))
    request, post = small_table["request_id"][row], small_table["post_id"][row]
    with pytest.raises(BadInput, match=f"feature tie_likes_14d is nan .*request {request}, post {post}"):
        load_samples(broken, "train")


def test_a_window_without_viewed_rows_is_refused(folder: Path, small_table: pa.Table):
    unseen = workspace_with(folder, _with(small_table, "viewed", np.zeros(small_table.num_rows, bool)))
    with pytest.raises(BadInput, match="no viewed test samples"):
        load_samples(unseen, "test")


def test_a_task_without_labels_is_nan_and_not_learnt(folder: Path, rng: np.random.Generator):
    from tests.ranking.synthetic import samples_table

    samples = load_samples(workspace_with(folder, samples_table(rng, 600, ("share",)), ("share",)), "train")
    assert tasks_with_labels(samples).tolist() == [False, False, False, True, False]
    assert np.isnan(samples.labels_NT[:, 0]).all() and np.isfinite(samples.rewards_N).all()


def test_a_row_stands_for_thinned_ones_and_an_action_for_those_that_nobody_could_take(
    folder: Path, small_table: pa.Table
):
    rows = small_table.num_rows
    thinned = _with(_with(small_table, "keep_share", np.full(rows, 0.25)), "examination", np.full(rows, 0.5))
    samples = load_samples(workspace_with(folder, thinned), "train")
    engaged_N = (samples.labels_NT == 1).any(axis=1)
    assert 0 < engaged_N.sum() < len(samples)
    assert set(samples.weights_N[engaged_N]) == {8.0} and set(samples.weights_N[~engaged_N]) == {4.0}


@pytest.mark.parametrize("share", [np.nan, 0.0])
def test_samples_that_stand_for_nobody_knows_what_are_refused(folder: Path, small_table: pa.Table, share: float):
    shares_N = np.where(np.arange(small_table.num_rows) % 3 == 0, share, 1.0)
    with pytest.raises(BadInput, match="samples have no examination or keep_share above 0.*samples` again"):
        load_samples(workspace_with(folder, _with(small_table, "keep_share", shares_N)), "train")


def test_exposure_weights_are_clipped_and_have_mean_one():
    weights_N = exposure_weights(np.array([0.5, 0.5, 0.5, 0.001]), clip=2.0)
    assert weights_N.mean() == pytest.approx(1.0) and weights_N[3] / weights_N[0] == pytest.approx(2 * (1006 / 4) / 2)


@pytest.mark.parametrize("propensity", [0.0, 1.5, np.nan])
def test_impossible_propensities_are_refused_where_weights_are_asked_for(propensity: float):
    with pytest.raises(BadInput, match=r"1 of 2 samples have no propensity"):
        exposure_weights(np.array([0.5, propensity]), clip=10.0)
    assert exposure_weights(np.array([0.5, propensity]), clip=None).tolist() == [1.0, 1.0]
