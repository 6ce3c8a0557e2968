"""Both rankers trained under every kind of layout on the behaviour environment's log: AUC and routing beside one process.

`python -m benchmarks.ranker_layouts` simulates a log, builds its samples with Spark, and trains with 1, 2, 4 and 8 ranks on
this machine; `--quick` takes a smaller log, two epochs and two ranks.
"""

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks._ranker_layouts import Outcome, mmoe_outcomes, sequence_outcomes
from benchmarks.claims import Claim, Result, run
from contracts.progress import stage
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from distributed import ParallelLayout, RankFailed, TrainResult, launch
from ranking.fit import build
from ranking.inputs import RankerInputs
from ranking.layouts import TrainingLayout
from ranking.metrics import auc
from ranking.sequence.fit import layout_sizes, predict
from ranking.sequence.network import build_network
from ranking.sequence.train import SequenceInputs, load_sequences
from ranking.settings import RankerSettings, SequenceSettings

GOAL = 1e-4
TIMEOUT_S = 300.0

Asked = tuple[str, dict]
SEQUENCE: tuple[Asked, ...] = (
    ("dp_shard=2", {"zero": 3}),
    ("tp=2", {}),
    ("pp=2", {"micro_batches": 2}),
    ("cp=2", {}),
    ("dp_shard=2", {"ep": 2}),
    ("dp_shard=2,tp=2", {"ep": 2}),
    ("pp=2,dp_shard=2", {"ep": 2, "micro_batches": 3, "schedule": "zb-h1"}),
    ("dp_shard=2,cp=2", {"ep": 4, "zero": 2}),
    ("pp=2,dp_shard=2,tp=2", {"ep": 2, "micro_batches": 2}),
    ("dp_shard=2,cp=2,tp=2", {"ep": 2, "zero": 3}),
)
MMOE: tuple[Asked, ...] = (
    ("dp_replicate=2", {}),
    ("dp_shard=2", {"zero": 3}),
    ("tp=2", {}),
    ("dp_shard=2", {"ep": 2}),
    ("dp_shard=2,tp=2", {"zero": 3}),
)


@dataclass(frozen=True)
class Trained:
    """A model's outcomes by layout, the one on one process first, and its test AUC per task."""

    outcomes: Mapping[TrainingLayout, Outcome]
    aucs: Mapping[TrainingLayout, dict[str, float]]


def measure(quick: bool) -> Result:
    """Every layout's largest difference of a task's test AUC to one process."""
    users, days, epochs, most = (120, 12, 2, 2) if quick else (400, 14, 4, 8)
    # Batches of the quick log are small so that there are steps to drift apart in.
    sequence = SequenceSettings(epochs=epochs, tries=1, patience=epochs, batch_size=32 if quick else 128)
    mmoe = RankerSettings(epochs=epochs, tries=1, patience=epochs, batch_size=128 if quick else 512)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        loaded = _log(Workspace(folder), users, days, sequence)
    rows = {name: len(samples) for name, samples in loaded.inputs.samples.items()}
    result = Result(sizes={"users": users, "days": days, "epochs": epochs, "rows": rows,
                           "histories": {name: len(data) for name, data in loaded.windows.items()}})  # fmt: skip
    _compare("sequence ranker", _sequence(loaded, sequence, _layouts(SEQUENCE, most), result), result)
    _compare("MMoE", _mmoe(loaded.inputs, mmoe, _layouts(MMOE, most), result), result)
    if not quick:
        _beside_mmoe(loaded, result)
    return result


def _log(workspace: Workspace, users: int, days: int, settings: SequenceSettings) -> SequenceInputs:
    from pipelines.samples import build_samples
    from pipelines.spark import session
    from simulator.environment import EnvironmentSettings, simulate

    with stage(f"simulate {users} people for {days} days"):
        simulate(workspace, EnvironmentSettings(users=users, days=days))
    with stage("Spark: samples"):
        build_samples(workspace, session())
    return load_sequences(workspace, settings)


def _layouts(asked: Sequence[Asked], most: int) -> list[TrainingLayout]:
    """One process, then what has at most `most` ranks, by ranks."""
    found = [TrainingLayout(ParallelLayout.parse(axes), **how) for axes, how in asked]
    found = [TrainingLayout(), *(layout for layout in found if layout.axes.world_size <= most)]
    return sorted(found, key=lambda layout: layout.axes.world_size)


def _sequence(
    loaded: SequenceInputs, settings: SequenceSettings, layouts: list[TrainingLayout], result: Result
) -> Trained:
    for layout in layouts:
        layout.refuse_unless_sequence(layout_sizes(settings))
    outcomes = _on_ranks(sequence_outcomes, (loaded.problem, settings), layouts, settings.collective_timeout_s, result)
    problem, test = loaded.problem, loaded.windows["test"]
    aucs = {}
    for layout, (trained, _) in outcomes.items():
        network = build_network(problem.rows, problem.slots_C, problem.train.tasks, settings)
        network.load_state_dict(trained.state)
        aucs[layout] = _aucs(predict(network, test), test.tasks.labels_NT, loaded.inputs.tasks_T)
    return Trained(outcomes, aucs)


def _mmoe(inputs: RankerInputs, settings: RankerSettings, layouts: list[TrainingLayout], result: Result) -> Trained:
    for layout in layouts:
        layout.refuse_unless_mmoe(settings.experts)
    data, slots_C = inputs.data, inputs.transform.slots
    given = (data["train"], data["validation"], slots_C, settings)
    outcomes = _on_ranks(mmoe_outcomes, given, layouts, settings.collective_timeout_s, result)
    aucs, test = {}, data["test"]
    for layout, (trained, _) in outcomes.items():
        network = build(slots_C, data["train"], settings)
        network.load_state_dict(trained.state)
        with torch.no_grad():
            logits_NT = network(torch.from_numpy(test.numeric_NM), torch.from_numpy(test.slots_NC)).numpy()
        aucs[layout] = _aucs(logits_NT, test.labels_NT, inputs.tasks_T)
    return Trained(outcomes, aucs)


def _on_ranks(worker, given: tuple, layouts: list[TrainingLayout], timeout_s: float, result: Result
              ) -> dict[TrainingLayout, Outcome]:  # fmt: skip
    """All layouts of as many ranks go to one start of them."""
    found: dict[TrainingLayout, Outcome] = {}
    for ranks, group in itertools.groupby(layouts, lambda layout: layout.axes.world_size):
        together = list(group)
        try:
            # Eight ranks on two cores wait long for each other: that is no fault here.
            outcomes = launch(worker, (*given, together), ranks, timeout_s=max(timeout_s, TIMEOUT_S))[0]
        except RankFailed as error:
            result.not_measured.append(f"{', '.join(map(str, together))}: {error}")
            continue
        found.update(zip(together, outcomes))
    return found


def _aucs(logits_NT: np.ndarray, labels_NT: np.ndarray, tasks_T: np.ndarray) -> dict[str, float]:
    known_NT = np.isfinite(labels_NT)
    return {
        TASK_NAMES[task]: auc(labels_NT[known_NT[:, task], task], logits_NT[known_NT[:, task], task])
        for task in np.flatnonzero(tasks_T)
    }


def _compare(name: str, trained: Trained, result: Result) -> None:
    alone = TrainingLayout()
    one, one_aucs = trained.outcomes[alone][0], trained.aucs[alone]
    for layout, (other, _) in trained.outcomes.items():
        if layout == alone:
            continue
        apart = max(abs(trained.aucs[layout][task] - value) for task, value in one_aucs.items())
        where = f"{name}, {layout}"
        result.claims.append(Claim(f"{where}: test AUC beside one process, largest difference of a task", apart, "AUC",
                                   goal="at most 1e-4", met=apart <= GOAL))  # fmt: skip
        if one.routed:
            moved = _routed_apart(one, other)
            result.claims.append(Claim(f"{where}: choices of experts that differ from one process's", moved, "choices",
                                       "choices in all", sum(map(sum, one.routed.values())), "0", moved == 0))  # fmt: skip
    result.sizes[f"seconds, {name}"] = {
        str(layout): round(seconds, 1) for layout, (_, seconds) in trained.outcomes.items()
    }


def _routed_apart(one: TrainResult, other: TrainResult) -> int:
    return sum(
        abs(mine - theirs)
        for layer, counts in one.routed.items()
        for mine, theirs in zip(counts, other.routed[layer], strict=True)
    )


def _beside_mmoe(loaded: SequenceInputs, result: Result) -> None:
    """Both rankers with their usual settings on one process."""
    alone = TrainingLayout()
    ranker = _sequence(loaded, SequenceSettings(), [alone], result).aucs[alone]
    peers = _mmoe(loaded.inputs, RankerSettings(), [alone], result).aucs[alone]
    for task, value in ranker.items():
        result.claims.append(Claim(f"sequence ranker, usual settings: test AUC, {task}", value, "AUC", "MMoE, same rows",
                                   peers[task]))  # fmt: skip


if __name__ == "__main__":
    run("ranker_layouts", measure)
