"""The sequence ranker as an artifact: written whole, read back verified. It is not served yet.

Legend: N rows, T tasks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from contracts.artifacts import Artifact
from contracts.errors import BadInput
from contracts.features import FEATURE_VERSION, INPUT_NAMES
from contracts.files import canonical_json
from contracts.samples import SAMPLES
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from ranking.fit import TaskData
from ranking.inputs import RankerInputs
from ranking.scorers import verified
from ranking.sequence.fit import predict
from ranking.sequence.network import SequenceRanker, build_network
from ranking.sequence.tokens import SequenceData, Vocabulary
from ranking.settings import SequenceSettings
from ranking.transform import NUMERIC_NAMES

KIND = "sequence_ranker"


@dataclass(frozen=True)
class SequenceScores:
    """A loaded sequence ranker. A task without labels has probability 0."""

    network: SequenceRanker
    vocabulary: Vocabulary
    platt_T2: np.ndarray
    tasks_T: np.ndarray
    version: str

    @classmethod
    def load(cls, artifact: Artifact) -> "SequenceScores":
        """`BadInput` when the artifact is of another kind or feature version, a file was changed, or a tensor is not what
        its settings say."""
        description = verified(artifact, KIND)
        if tuple(description["feature_names"]) != INPUT_NAMES or tuple(description["task_names"]) != TASK_NAMES:
            raise BadInput(f"{KIND} {artifact.version} has other inputs or tasks than this code: train it again")
        vocabulary = Vocabulary(tuple(description["topics"]), tuple(description["authors"]))
        settings = SequenceSettings(**artifact.settings)
        network = build_network(vocabulary.rows, description["category_slots"], _no_rows(), settings)
        state = torch.load(artifact.file("checkpoint.pt"), map_location="cpu", weights_only=True)
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            raise BadInput(f"{KIND} {artifact.version}: checkpoint.pt does not fit its settings: {error}") from None
        tasks_T = np.array([name in description["tasks_with_labels"] for name in TASK_NAMES])
        return cls(network.double().eval(), vocabulary, np.array(description["platt"]), tasks_T, artifact.version)

    def probabilities(self, data: SequenceData) -> np.ndarray:
        """Calibrated (N, T), float64, in the order of TASK_NAMES."""
        return calibrated(predict(self.network, data), self.platt_T2) * self.tasks_T


def calibrated(logits_NT: np.ndarray, platt_T2: np.ndarray) -> np.ndarray:
    """Probabilities of logits under each task's slope and intercept."""
    return 1.0 / (1.0 + np.exp(-(logits_NT * platt_T2[:, 0] + platt_T2[:, 1])))


def write(workspace: Workspace, state: dict[str, torch.Tensor], vocabulary: Vocabulary, platt_T2: np.ndarray,
          inputs: RankerInputs, test: SequenceData, logits_NT: np.ndarray, settings: SequenceSettings,
          metrics: dict[str, Any]) -> str:  # fmt: skip
    """Puts it in force as artifact "sequence_ranker" and returns its version; before that it is loaded back from its files
    and must give `logits_NT`, those of the window `test`, once more.

    Files: `checkpoint.pt` (the whole network's state, whatever layout trained it), `transform.json`, `model.json`.
    """
    parents = {"samples": workspace.samples.manifest(SAMPLES).content_hash}
    with workspace.artifacts.create(KIND, parents=parents, settings=settings.model_dump(mode="json"),
                                    feature_version=FEATURE_VERSION) as artifact:  # fmt: skip
        torch.save(state, artifact.path / "checkpoint.pt")
        (artifact.path / "transform.json").write_bytes(canonical_json(inputs.transform.as_dict()))
        description = {
            "feature_names": INPUT_NAMES, "task_names": TASK_NAMES, "tasks_with_labels": metrics["tasks_with_labels"],
            "topics": vocabulary.topics, "authors": vocabulary.authors, "category_slots": inputs.transform.slots,
            "platt": platt_T2.tolist(),
        }  # fmt: skip
        (artifact.path / "model.json").write_bytes(canonical_json(description))
        again_NT = SequenceScores.load(artifact).probabilities(test)
        if not np.array_equal(again_NT, calibrated(logits_NT, platt_T2) * inputs.tasks_T):
            raise RuntimeError(f"the {KIND} read back from its files gives other probabilities than the trained one")
        artifact.metrics = metrics
    return artifact.version


def mmoe_aucs(workspace: Workspace) -> dict[str, float]:
    """Test AUC per task of the MMoE in force, if it was made of the very same samples; else none."""
    try:
        artifact = workspace.artifacts.load("ranker")
    except BadInput:
        return {}
    if artifact.parents.get("samples") != workspace.samples.manifest(SAMPLES).content_hash:
        return {}
    return {task: values["auc"] for task, values in artifact.metrics.get("test", {}).items()}


def _no_rows() -> TaskData:
    """In place of training rows, whose label rates the checkpoint overwrites."""
    tasks = len(TASK_NAMES)
    return TaskData(
        np.zeros((0, len(NUMERIC_NAMES))), np.zeros((0, 0), np.int64), np.zeros((0, tasks)), np.zeros(0)
    )  # fmt: skip
