"""What both rankers train on: the samples of the three windows, the tasks that can be learnt, the transformed rows."""

from dataclasses import dataclass

import numpy as np
import torch

from contracts.errors import BadInput
from contracts.progress import say
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from ranking.data import Samples, check_samples, exposure_weights, load_samples, tasks_with_labels
from ranking.fit import TaskData
from ranking.settings import RankerSettings, SequenceSettings
from ranking.transform import InputTransform

WINDOWS = ("train", "validation", "test")


@dataclass(frozen=True)
class RankerInputs:
    """`samples` and `data` by window, row for row; `tasks_T` masks the tasks that have labels to learn from."""

    samples: dict[str, Samples]
    data: dict[str, TaskData]
    transform: InputTransform
    tasks_T: np.ndarray


def load_inputs(workspace: Workspace, settings: RankerSettings | SequenceSettings) -> RankerInputs:
    """`BadInput` when the samples cannot be trained on."""
    check_samples(workspace)
    samples = {name: load_samples(workspace, name) for name in WINDOWS}
    tasks_T = _learnable(samples["train"], workspace)
    transform = InputTransform.fit(samples["train"].inputs_NF, settings.category_codes, settings.category_rows)
    data = {name: transformed(part, transform, tasks_T, settings.exposure_clip) for name, part in samples.items()}
    return RankerInputs(samples, data, transform, tasks_T)


def transformed(samples: Samples, transform: InputTransform, tasks_T: np.ndarray, clip: float | None) -> TaskData:
    """The rows of one window as networks take them; only training rows are weighted by exposure."""
    with torch.no_grad():
        numeric_NM, slots_NC = (tensor.numpy() for tensor in transform(torch.from_numpy(samples.inputs_NF)))
    labels_NT = np.where(tasks_T, samples.labels_NT, np.nan)
    weights_N = exposure_weights(samples.propensities_N, clip if samples.split == "train" else None)
    return TaskData(numeric_NM, slots_NC, labels_NT, weights_N * samples.weights_N)


def _learnable(train_samples: Samples, workspace: Workspace) -> np.ndarray:
    tasks_T = tasks_with_labels(train_samples)
    if not tasks_T.any():
        raise BadInput(
            f"no task has both labels among {len(train_samples)} viewed train samples: there is nothing to learn"
        )
    declared = workspace.dataset().tasks
    for name, learnt in zip(TASK_NAMES, tasks_T):
        if name in declared and not learnt:
            say(f"! task {name} has no positive or no negative training label and is left out")
    return tasks_T
