"""Learning-rate schedules as plain functions of the step: a warm-up, then a shape."""

import math
from collections.abc import Callable

SHAPES = ("cosine", "linear", "constant", "wsd")


def rate_factor(shape: str, steps: int, warmup_share: float, decay_share: float = 0.2) -> Callable[[int], float]:
    """Step number to a factor of the peak rate.

    All shapes rise in a line over `warmup_share` of `steps` (at least one). Then "cosine" and "linear" fall to 0 over the
    rest, "constant" stays, and "wsd" stays and falls in a line over the last `decay_share` of `steps` (warm-up, stable,
    decay; Hu et al. 2024, MiniCPM): the one that can be cut anywhere in its stable part and ended from there.
    `ValueError` for any other shape, or shares outside 0 to 1.
    """
    if shape not in SHAPES:
        raise ValueError(f"schedule is {shape!r}, not {', '.join(SHAPES[:-1])} or {SHAPES[-1]}")
    if not (0.0 <= warmup_share <= 1.0 and 0.0 <= decay_share <= 1.0):
        raise ValueError(
            f"warm-up over {warmup_share} and decay over {decay_share} of all steps: each lies between 0 and 1"
        )
    warmup = max(1, round(warmup_share * steps))
    decay = max(1, round(decay_share * steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if shape == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
        if shape == "linear":
            return max(0.0, (steps - step) / max(1, steps - warmup))
        return 1.0 if shape == "constant" else max(0.0, min(1.0, (steps - step) / decay))

    return factor
