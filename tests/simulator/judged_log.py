"""A small simulated log with states, samples and trained models, made in seconds without Spark.

Samples and states come from the online code, walked through the whole log; that batch and online agree is shown elsewhere.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.features import FAMILIES, FEATURE_NAMES, FEATURE_VERSION, INPUT_NAMES
from contracts.files import canonical_json
from contracts.samples import SAMPLES
from contracts.states import STATES
from contracts.tables import ACTIONS, IMPRESSIONS, REQUESTS
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from serving.features.hydrate import decayed
from serving.feed import Models, Query, ValueModel, pool_policy
from serving.log_changes import LogChanges
from serving.store.memory import MemoryStore
from serving.store.packing import unpack_states


def make_judged_log(root: Path, users: int = 120, days: int = 14) -> Workspace:
    """The log, states as of the start of validation, samples, pre-ranker and ranker."""
    from ranking.prerank import train_prerank
    from ranking.settings import PrerankSettings
    from simulator.environment import EnvironmentSettings, simulate

    workspace = Workspace(root)
    simulate(workspace, EnvironmentSettings(users=users, days=days, warmup_days=3, requests_per_day=2.0, seed=3))
    _states_and_samples(workspace)
    train_prerank(workspace, PrerankSettings(trees=20, leaves=7, threads=1))
    write_linear_ranker(workspace)
    return workspace


def write_linear_ranker(workspace: Workspace) -> None:
    """A ranker artifact of one linear layer on three inputs: true in form, made without training."""
    from onnx import TensorProto, helper

    weight_FT = np.zeros((len(INPUT_NAMES), len(TASK_NAMES)), np.float32)
    weight_FT[INPUT_NAMES.index("taste_click_rate")] = [6, 2, 1, 1, -4]
    weight_FT[INPUT_NAMES.index("tie_like_rate")] = [2, 8, 4, 4, -4]
    weight_FT[INPUT_NAMES.index("post_hide_rate")] = [-2, -4, -4, -4, 8]
    bias_T = np.array([-3, -4, -5, -5, -4], np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["inputs", "weight", "bias"], ["logits"]),
         helper.make_node("Sigmoid", ["logits"], ["probabilities"])],
        "linear",
        [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, ["N", len(INPUT_NAMES)])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", len(TASK_NAMES)])],
        [helper.make_tensor("weight", TensorProto.FLOAT, weight_FT.shape, weight_FT.ravel()),
         helper.make_tensor("bias", TensorProto.FLOAT, bias_T.shape, bias_T)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    parents = {"samples": workspace.samples.manifest(SAMPLES).content_hash}
    with workspace.artifacts.create("ranker", parents=parents, feature_version=FEATURE_VERSION) as artifact:
        (artifact.path / "model.onnx").write_bytes(model.SerializeToString())
        described = {"feature_names": INPUT_NAMES, "task_names": TASK_NAMES, "tasks_with_labels": TASK_NAMES}
        (artifact.path / "model.json").write_bytes(canonical_json(described))
        artifact.metrics = {"test": {task: {"auc_logistic_regression": 0.5} for task in TASK_NAMES}}


def _states_and_samples(workspace: Workspace) -> None:
    dataset = workspace.dataset()
    split = dataset.split()
    requests = workspace.lake.read(REQUESTS).sort_by("requested_at").to_pylist()
    shown = {}
    for row in workspace.lake.read(IMPRESSIONS).to_pylist():
        shown.setdefault(row["request_id"], []).append(row)
    labels = {
        (row["request_id"], row["post_id"], row["kind"], row["occurred_at"])
        for row in workspace.lake.read(ACTIONS).to_pylist()
    }
    acted: dict = {}
    for request_id, post_id, kind, at in labels:
        acted.setdefault((request_id, post_id, kind), []).append(at)
    store, changes = MemoryStore(), LogChanges(workspace, 0, dataset.end)
    preparing = pool_policy("chronological", Models(None, None, None, ValueModel({}), {}), dataset.live_us)
    rows: list[dict] = []
    kept_states = False
    for request in requests:
        if not kept_states and request["requested_at"] >= split.validation[0]:
            changes.advance(store, split.validation[0])
            _write_states(workspace, store, split.validation[0])
            kept_states = True
        changes.advance(store, request["requested_at"])
        window = next((name for name in ("train", "validation", "test")
                       if getattr(split, name)[0] <= request["requested_at"] < getattr(split, name)[1]), "")  # fmt: skip
        slate = shown.get(request["request_id"], [])
        if not window or any(row["shown_at"] >= getattr(split, window)[1] for row in slate):
            continue
        query = Query(request["user_id"], request["requested_at"], 8, 0, np.array(request["candidates"], np.int64))
        candidates = preparing.prepare(query, store).candidates
        row_of = {post_id: i for i, post_id in enumerate(candidates["post_id"].tolist())}
        for row in slate:
            if row["post_id"] in row_of:
                rows.append(
                    _sample(row, request, window, candidates["inputs_NF"][row_of[row["post_id"]]], acted, dataset)
                )
    table = pa.Table.from_pylist(rows, schema=SAMPLES.schema)
    workspace.samples.write(SAMPLES, table, parents={"feature_version": FEATURE_VERSION})


def _sample(row: dict, request: dict, window: str, inputs_F: np.ndarray, acted: dict, dataset) -> dict:
    sample = {name: row[name] for name in ("request_id", "user_id", "post_id", "author_id", "position", "shown_at",
                                           "policy", "propensity")}  # fmt: skip
    sample |= {"requested_at": request["requested_at"], "viewed": row["viewed_ms"] > 0, "split": window,
               "examination": 1.0, "keep_share": 1.0}  # fmt: skip
    for task in TASK_NAMES:
        times = acted.get((row["request_id"], row["post_id"], task), [])
        sample[f"label_{task}"] = int(any(0 <= at - row["shown_at"] < dataset.attribution_us for at in times))
    return sample | dict(zip(INPUT_NAMES[: len(FEATURE_NAMES)], inputs_F.tolist()))


def _write_states(workspace: Workspace, store: MemoryStore, as_of: int) -> None:
    for name, family in FAMILIES.items():
        found = {k: v for k, v in store.values.items() if k.split(b":")[0] == name.encode()}
        states_NS = unpack_states(list(found.values()), family.width)
        counters = len(family.counters)
        values_NS = np.concatenate([decayed(states_NS, name, as_of), states_NS[:, 1 + counters :]], axis=1)
        ids = np.array([[int(part) for part in k.decode().split(":")[1:]] for k in found]).reshape(len(found), -1)
        columns = {column: pa.array(ids[:, i]) for i, column in enumerate(family.key)}
        table = pa.table(
            {"as_of": pa.array(np.full(len(found), as_of)), **columns, "values": pa.array(values_NS.tolist())}
        )
        workspace.features.write(STATES[name], table)
