"""Batch and online features agree on a whole log, and a feature that drifts is named."""

from dataclasses import replace

import numpy as np
import pytest

from contracts.features import INPUT_NAMES
from contracts.workspace import Workspace
from serving.feed import Models, ValueModel, pool_policy
from simulator.replay.parity import compare_features
from simulator.replay.walk import Walker
from simulator.replay.window import load_window


@pytest.mark.slow
@pytest.mark.spark
def test_spark_samples_hold_what_the_walk_hydrates(spark, tmp_path):
    from pipelines.features import build_states
    from pipelines.samples import build_samples
    from simulator.environment import EnvironmentSettings, simulate

    workspace = Workspace(tmp_path)
    simulate(workspace, EnvironmentSettings(users=100, days=14, warmup_days=3, requests_per_day=2.0, seed=5))
    build_states(workspace, spark)
    build_samples(workspace, spark)
    split = workspace.dataset().split()
    window = load_window(workspace, split, "test", has_propensities=True, limit=None)
    pipeline = pool_policy("chronological", Models(None, None, None, ValueModel({}), {}), workspace.dataset().live_us)
    everything = np.ones(len(window.request_R), bool)
    exact = Walker(workspace, split).walk(window, {}, pipeline, everything).exact
    span = (split.test[0], split.test[1] + split.window_us)
    found = compare_features(workspace, exact, *span)
    assert found["rows"] > 1000
    assert found["differing"] == {}, found["sentence"]

    drifted = exact.inputs_NF.copy()
    drifted[:, INPUT_NAMES.index("tie_likes_14d")] *= 1.001
    found = compare_features(workspace, replace(exact, inputs_NF=drifted), *span)
    assert list(found["differing"]) == ["tie_likes_14d"]
    assert "1 of" in found["sentence"]
    assert "tie_likes_14d" in found["sentence"]
