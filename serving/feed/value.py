"""The value model: calibrated probabilities to one number, by weights and by how close and how fresh a post is.

Shapes: N candidates, T tasks, F model inputs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from contracts.artifacts import Artifact
from contracts.errors import BadInput
from contracts.files import read_json
from contracts.tasks import TASK_NAMES, TASKS
from serving.feed.candidates import feature

VALUE_MODEL_FILE = "value_model.json"
"""The one file of an artifact of kind "value_model": the fields of `ValueModel` as JSON."""


@dataclass(frozen=True)
class ValueModel:
    """value = (sum of weight x probability) x tie_strength ** tie_exponent x freshness ** freshness_exponent.

    Where the sum is negative the factors divide it, so that a closer tie never makes a post less welcome. `weights` by
    task; a task that is not named weighs nothing. `freshness_half_life_hours` is the age at which freshness is a half.
    """

    weights: Mapping[str, float]
    tie_exponent: float = 0.0
    freshness_exponent: float = 0.0
    freshness_half_life_hours: float = 24.0

    @classmethod
    def for_tasks(cls, tasks: tuple[str, ...]) -> "ValueModel":
        """Untuned: every task that the log has weighs its worth."""
        return cls({task.name: task.worth for task in TASKS if task.name in tasks})

    @classmethod
    def load(cls, artifact: Artifact) -> "ValueModel":
        """Reads a "value_model" artifact; `BadInput` names what is wrong in it. Fields of other rooms are left alone."""
        record: dict[str, Any] = read_json(artifact.file(VALUE_MODEL_FILE))
        weights = record.get("weights")
        if not isinstance(weights, dict) or set(weights) - set(TASK_NAMES):
            raise BadInput(
                f"value model {artifact.version} must have weights by task, of {', '.join(TASK_NAMES)}; it has {weights}"
            )
        numbers = {name: float(record[name]) for name in _NUMBERS if name in record}
        return cls({task: float(weight) for task, weight in weights.items()}, **numbers)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "weights": dict(self.weights)}

    def unused(self, tasks: tuple[str, ...]) -> tuple[str, ...]:
        """Tasks of the ranker that weigh nothing here: predicted for no use, which start-up says aloud."""
        return tuple(task for task in tasks if not self.weights.get(task, 0.0))

    def values(self, probability_NT: np.ndarray, inputs_NF: np.ndarray) -> np.ndarray:
        """Values (N,) of candidates with probabilities in the order of TASK_NAMES and inputs of INPUT_NAMES."""
        weight_T = np.array([self.weights.get(task, 0.0) for task in TASK_NAMES])
        value_N = probability_NT @ weight_T
        factor_N = np.ones(len(value_N))
        if self.tie_exponent:
            factor_N = factor_N * tie_strength(inputs_NF) ** self.tie_exponent
        if self.freshness_exponent:
            factor_N = factor_N * freshness(inputs_NF, self.freshness_half_life_hours) ** self.freshness_exponent
        return np.where(value_N >= 0, value_N * factor_N, value_N / np.maximum(factor_N, 1e-12))


_NUMBERS = ("tie_exponent", "freshness_exponent", "freshness_half_life_hours")


def tie_strength(inputs_NF: np.ndarray) -> np.ndarray:
    """Closeness (N,) >= 1 of viewer and author: 1 + log1p(decayed contacts both ways) + 1 for special care."""
    contacts_N = feature(inputs_NF, "tie_contacts_180d") + feature(inputs_NF, "back_contacts_180d")
    return 1.0 + np.log1p(contacts_N) + feature(inputs_NF, "special_care")


def freshness(inputs_NF: np.ndarray, half_life_hours: float) -> np.ndarray:
    """Freshness (N,) in (0, 1]: halves every `half_life_hours` of a post's age."""
    return np.exp2(-feature(inputs_NF, "post_age_hours") / half_life_hours)
