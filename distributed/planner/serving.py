"""Serving a model: replicas against tensor and pipeline parallel, for latency and for throughput, with time to first result.

A replica answers requests of `prompt` tokens with `output` tokens (0: one forward, as a ranker's). Prefill is bound by
arithmetic, a decoding step by reading weights and the cache of keys and values from memory.
"""

import dataclasses
import math
from dataclasses import dataclass

from distributed.planner.collectives import collective_s, spread
from distributed.planner.errors import PlanError
from distributed.planner.estimate import Estimator
from distributed.planner.layout import Layout, divisors
from distributed.planner.machines import Cluster
from distributed.planner.memory import stage_parameters
from distributed.planner.models import Model
from distributed.planner.timing import elementwise_s


@dataclass(frozen=True)
class Traffic:
    """One request: tokens in, tokens out, and how many requests a second arrive over the whole cluster."""

    prompt: int
    output: int
    requests_per_s: float = 0.0


@dataclass(frozen=True)
class ServingPlan:
    """One way to serve. Times in seconds of one request in a batch of `batch`; rates over all replicas.

    `wait_s` is the time in the queue at the traffic's rate, as with one server that takes a request's whole time: infinite
    when requests arrive faster than they are served.
    """

    replicas: int
    tp: int
    pp: int
    batch: int
    first_result_s: float
    per_token_s: float
    request_s: float
    requests_per_s: float
    memory_gib: float
    bound: str
    wait_s: float

    def __str__(self) -> str:
        return f"{self.replicas} x (tp={self.tp}, pp={self.pp}), batch {self.batch}"


def serving_plans(model: Model, cluster: Cluster, traffic: Traffic, largest_batch: int = 256) -> list[ServingPlan]:
    """Every split of the cluster into replicas that fits, each at batches in powers of two; `PlanError` when none fits."""
    if traffic.prompt < 1 or traffic.output < 0:
        raise PlanError(f"a request of {traffic.prompt} tokens in and {traffic.output} out cannot be served")
    found, smallest = [], math.inf
    for ranks in divisors(cluster.gpus):
        for tp in divisors(ranks, cluster.per_node if model.layers else 1):
            pp = ranks // tp
            if model.layers and (model.heads % tp or model.width % tp or pp > model.layers):
                continue
            if not model.layers and ranks > 1:
                continue
            for power in range(largest_batch.bit_length()):
                plan = _plan(model, cluster, traffic, cluster.gpus // ranks, tp, pp, 2**power)
                smallest = min(smallest, plan.memory_gib)
                if plan.memory_gib * 2**30 > cluster.usable_bytes:
                    break
                found.append(plan)
    if not found:
        raise PlanError(
            f"{model.name} cannot be served on {cluster.gpus} {cluster.name}: the smallest split needs {smallest:.1f} GiB an "
            f"accelerator, {cluster.usable_bytes / 2**30:.1f} are usable"
        )
    return found


def _plan(model: Model, cluster: Cluster, traffic: Traffic, replicas: int, tp: int, pp: int, batch: int) -> ServingPlan:
    layout = Layout(tp=tp, pp=pp, micro_batch=batch, zero=0, sp=False)
    asked = _with_sequence(model, traffic.prompt)
    estimator = Estimator(asked, cluster, batch)
    dense, _, entry, head = estimator.pieces(layout)
    layer = estimator.mean_layer(layout) if model.layers else dense
    # Only the last token's logits are needed: the head works on one token a request.
    last = head.forward / max(traffic.prompt, 1)
    handed = (pp - 1) * estimator.p2p_s(layout)
    first = model.layers * layer.forward + entry.forward + last + handed
    layers = math.ceil(model.layers / pp) if model.layers else 0
    held = sum(stage_parameters(asked, layout, layers, True, pp == 1))
    weights = 2.0 * held + 4.0 * model.table_parameters / (tp * pp)
    tokens = traffic.prompt + traffic.output
    cache = 2 * 2.0 * batch * tokens * layers * model.key_width / min(tp, model.key_heads) if traffic.output else 0.0
    working = 2.0 * batch * traffic.prompt * (4 * model.hidden + 2 * model.width / tp) if model.layers else 0.0
    per_token, bound = 0.0, "arithmetic"
    if traffic.output:
        read = elementwise_s(weights + cache * (traffic.prompt + traffic.output / 2) / tokens, cluster)
        flops = 2.0 * batch * held / (cluster.peak(cluster.training_dtype) * cluster.efficiency.matmul)
        size = 2.0 * batch * model.hidden
        reduce = 2 * layers * collective_s("all_reduce", size, spread(cluster, tp, 1), cluster)
        hop = collective_s("p2p", size / tp, spread(cluster, pp, tp), cluster) if pp > 1 else 0.0
        # One token passes every stage in turn; while it does, the other stages work on other batches.
        per_token = pp * (max(read, flops) + reduce) + (pp - 1) * hop
        bound = max(
            (("memory", read), ("arithmetic", flops), ("communication", reduce + hop)), key=lambda pair: pair[1]
        )[0]
    request = first + traffic.output * per_token
    # A pipeline holds pp batches at once.
    rate = replicas * batch * pp / request
    load = traffic.requests_per_s / rate
    wait = math.inf if load >= 1 else request / 2 * load / (1 - load)
    memory = (weights + cache * pp + working) / 2**30
    return ServingPlan(replicas, tp, pp, batch, first, per_token, request, rate, memory, bound, wait)


def _with_sequence(model: Model, sequence: int) -> Model:
    return dataclasses.replace(model, sequence=sequence) if model.layers else model


def advise(plans: list[ServingPlan], traffic: Traffic) -> dict[str, ServingPlan]:
    """The plan with the earliest first result, the earliest whole answer, and the most requests a second.

    With a rate of arrival, only plans that keep up with it count for the first two, their waiting included.
    """
    able = [plan for plan in plans if plan.wait_s < math.inf]
    if not able:
        most = max(plan.requests_per_s for plan in plans)
        raise PlanError(
            f"{traffic.requests_per_s:g} requests a second are more than the {most:.3g} that the cluster can serve"
        )
    return {
        "first result": min(able, key=lambda plan: (plan.wait_s + plan.first_result_s, -plan.requests_per_s)),
        "whole answer": min(able, key=lambda plan: (plan.wait_s + plan.request_s, -plan.requests_per_s)),
        "throughput": max(plans, key=lambda plan: plan.requests_per_s),
    }
