"""Whether a forward runs for the first time, or again inside a backward to give back what was not kept."""

import torch


def recomputing() -> bool:
    """True inside a backward: counters and other side effects of a forward must then hold still."""
    return torch._C._current_graph_task_id() != -1
