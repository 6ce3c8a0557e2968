"""What serves the models: feature rows in, scores out, with neither LightGBM nor torch in the process.

Legend: N candidates, F = len(INPUT_NAMES), P = len(PRERANK_NAMES), T = len(TASK_NAMES).
"""

from typing import Any

import numpy as np

from contracts.artifacts import Artifact, ArtifactStore
from contracts.errors import BadInput
from contracts.features import FEATURE_VERSION, INPUT_NAMES, PRERANK_NAMES
from contracts.files import read_json
from contracts.tasks import TASK_NAMES
from ranking.compiled_trees import load_compiled

_PRERANK_COLUMNS_P = np.array([INPUT_NAMES.index(name) for name in PRERANK_NAMES])


class PrerankScorer:
    """The pre-ranker: one score per candidate, higher is better; only the order of scores has a meaning."""

    def __init__(self, trees: Any, version: str):
        self._trees = trees
        self.version = version

    @classmethod
    def load(cls, artifact: Artifact) -> "PrerankScorer":
        """Loads a "prerank" artifact; compiles its trees for this processor, or takes them from the compiled cache.

        `BadInput` when the artifact is of another kind or another feature version, or a file was changed.
        """
        description = verified(artifact, "prerank")
        _same_names(artifact, description["feature_names"], PRERANK_NAMES, "features")
        return cls(load_compiled(artifact.file("model.txt")), artifact.version)

    def score(self, inputs_NF: np.ndarray) -> np.ndarray:
        """Scores (N,), float64, of `contracts.features.assemble` rows (N, F)."""
        _checked(inputs_NF)
        if not len(inputs_NF):
            return np.zeros(0)
        rows_NP = np.ascontiguousarray(inputs_NF[:, _PRERANK_COLUMNS_P], dtype=np.float64)
        return self._trees.predict(rows_NP, n_jobs=1)


class RankerScorer:
    """The ranker: calibrated probabilities of every task.

    `tasks` are those that the training log had labels for; the probability of any other task is 0 for every row.
    """

    def __init__(self, session: Any, tasks: tuple[str, ...], version: str):
        self._session = session
        self.tasks = tasks
        self.version = version

    @classmethod
    def load(cls, artifact: Artifact) -> "RankerScorer":
        """Loads a "ranker" artifact into onnxruntime, one thread per process.

        `BadInput` when the artifact is of another kind or another feature version, or a file was changed.
        """
        import onnxruntime

        description = verified(artifact, "ranker")
        _same_names(artifact, description["feature_names"], INPUT_NAMES, "features")
        _same_names(artifact, description["task_names"], TASK_NAMES, "tasks")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            str(artifact.file("model.onnx")), sess_options=options, providers=["CPUExecutionProvider"]
        )
        return cls(session, tuple(description["tasks_with_labels"]), artifact.version)

    def probabilities(self, inputs_NF: np.ndarray) -> np.ndarray:
        """Probabilities (N, T), float64, in the order of TASK_NAMES, of `contracts.features.assemble` rows (N, F)."""
        _checked(inputs_NF)
        if not len(inputs_NF):
            return np.zeros((0, len(TASK_NAMES)))
        rows_NF = np.ascontiguousarray(inputs_NF, dtype=np.float32)
        (probabilities_NT,) = self._session.run(["probabilities"], {"inputs": rows_NF})
        return probabilities_NT.astype(np.float64)


def verified(artifact: Artifact, kind: str) -> dict:
    """The `model.json` of an artifact that is of `kind`, of this feature version, and unchanged; else `BadInput`."""
    if artifact.kind != kind:
        raise BadInput(f"artifact {artifact.version} is a {artifact.kind} model, not a {kind} model")
    if artifact.feature_version != FEATURE_VERSION:
        raise BadInput(
            f"{kind} model {artifact.version} was trained with feature version {artifact.feature_version}, "
            f"but this code computes {FEATURE_VERSION}: train it again"
        )
    ArtifactStore(artifact.path.parent.parent).verify(artifact)
    return read_json(artifact.file("model.json"))


def _same_names(artifact: Artifact, found: list[str], expected: tuple[str, ...], what: str) -> None:
    if tuple(found) != expected:
        raise BadInput(
            f"{artifact.kind} model {artifact.version} was trained on {len(found)} {what} that are not, in order, "
            f"the {len(expected)} of this code: train it again"
        )


def _checked(inputs_NF: np.ndarray) -> None:
    if inputs_NF.ndim != 2 or inputs_NF.shape[1] != len(INPUT_NAMES):
        raise ValueError(f"model inputs have shape {inputs_NF.shape}, expected (N, {len(INPUT_NAMES)})")
