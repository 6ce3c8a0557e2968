"""What serves gives the trained model's figures, and refuses what it was not trained for."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from contracts.artifacts import Artifact
from contracts.errors import BadInput
from contracts.features import INPUT_NAMES, PRERANK_NAMES
from contracts.workspace import Workspace
from ranking.data import load_samples
from ranking.scorers import PrerankScorer, RankerScorer


@pytest.fixture(scope="session")
def trees(workspace: Workspace, prerank: dict) -> Artifact:
    return workspace.artifacts.load("prerank")


@pytest.fixture(scope="session")
def network(workspace: Workspace, ranker: dict) -> Artifact:
    return workspace.artifacts.load("ranker")


@pytest.fixture(scope="session")
def inputs_NF(workspace: Workspace) -> np.ndarray:
    return load_samples(workspace, "test").inputs_NF[:500]


def test_compiled_trees_equal_lightgbm(trees: Artifact, inputs_NF: np.ndarray):
    booster = lightgbm.Booster(model_file=str(trees.file("model.txt")))
    columns = [INPUT_NAMES.index(name) for name in PRERANK_NAMES]
    expected_N = booster.predict(inputs_NF[:, columns], raw_score=True)
    assert np.abs(PrerankScorer.load(trees).score(inputs_NF) - expected_N).max() < 1e-9
    assert np.ptp(expected_N) > 0


def test_damaged_machine_code_is_compiled_again(trees: Artifact, inputs_NF: np.ndarray):
    expected_N = PrerankScorer.load(trees).score(inputs_NF)
    (kept,) = (trees.path.parent / ".compiled").glob("*.o")
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert np.array_equal(PrerankScorer.load(trees).score(inputs_NF), expected_N)
    assert kept.read_bytes()[:4] == whole[:4] and len(kept.read_bytes()) > len(whole) // 2


def test_a_model_of_another_feature_version_is_refused(trees: Artifact, network: Artifact):
    for scorer, artifact in ((PrerankScorer, trees), (RankerScorer, network)):
        with pytest.raises(BadInput, match="was trained with feature version 0000, but this code computes"):
            scorer.load(dataclasses.replace(artifact, feature_version="0000"))


def test_a_model_of_another_kind_is_refused(trees: Artifact):
    with pytest.raises(BadInput, match="is a prerank model, not a ranker model"):
        RankerScorer.load(trees)


def test_a_changed_file_is_refused(trees: Artifact, tmp_path: Path):
    copied = tmp_path / "prerank" / trees.version
    shutil.copytree(trees.path, copied)
    (copied / "model.txt").write_text((copied / "model.txt").read_text().replace("leaf_value=", "leaf_value=9", 1))
    with pytest.raises(BadInput, match="file model.txt was changed"):
        PrerankScorer.load(dataclasses.replace(trees, path=copied))


def test_no_candidates_give_no_scores(trees: Artifact, network: Artifact):
    nothing_NF = np.zeros((0, len(INPUT_NAMES)))
    assert PrerankScorer.load(trees).score(nothing_NF).shape == (0,)
    assert RankerScorer.load(network).probabilities(nothing_NF).shape == (0, 5)


def test_inputs_of_another_width_are_refused(trees: Artifact):
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        PrerankScorer.load(trees).score(np.zeros((2, 3)))


def test_a_candidates_score_does_not_depend_on_the_others(trees: Artifact, network: Artifact, inputs_NF: np.ndarray):
    scorer, ranker = PrerankScorer.load(trees), RankerScorer.load(network)
    assert np.array_equal(scorer.score(inputs_NF[7:8]), scorer.score(inputs_NF)[7:8])
    assert np.allclose(ranker.probabilities(inputs_NF[7:8]), ranker.probabilities(inputs_NF)[7:8], atol=1e-6)


def test_serving_loads_neither_lightgbm_nor_torch(network: Artifact, trees: Artifact):
    script = (
        "import sys, json, numpy as np\n"
        "from pathlib import Path\n"
        "from contracts.artifacts import ArtifactStore\n"
        "from ranking.scorers import PrerankScorer, RankerScorer\n"
        f"store = ArtifactStore(Path({str(trees.path.parent.parent)!r}))\n"
        f"rows = np.zeros((2, {len(INPUT_NAMES)}))\n"
        "PrerankScorer.load(store.load('prerank')).score(rows)\n"
        "RankerScorer.load(store.load('ranker')).probabilities(rows)\n"
        "print(json.dumps([name for name in ('lightgbm', 'torch', 'sklearn', 'pyspark') if name in sys.modules]))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []
