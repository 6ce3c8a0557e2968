"""Mixtures of experts, sharded over ranks: sparse layers whose tokens travel, and dense ones that every sample uses."""

from distributed.experts.balance import StepLoad, balance_, take_load
from distributed.experts.bank import ExpertBank
from distributed.experts.dense import shard_dense_experts
from distributed.experts.layer import ExpertLayer, expert_groups, expert_parameters
from distributed.experts.load import ExpertLoad
from distributed.experts.placement import Placement, place_by_load
from distributed.experts.router import Router, RouterSettings, Routing, update_balance_bias_

__all__ = [
    "ExpertBank", "ExpertLayer", "ExpertLoad", "Placement", "Router", "RouterSettings", "Routing", "StepLoad", "balance_",
    "expert_groups", "expert_parameters", "place_by_load", "shard_dense_experts", "take_load", "update_balance_bias_",
]  # fmt: skip
