"""Pipeline schedules as what they are: for each rank, the order of its operations.

A model is cut into stages; a *path* is the sequence of ranks that a micro-batch visits stage by stage (DualPipe has two,
one from each end). F is a forward, B the gradient of inputs, W the gradient of weights, D the whole backward (B then W).
Operations that a rank runs as one overlapped block share a slot.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from distributed.planner.errors import PlanError


class Op(NamedTuple):
    """One operation: `kind` F, B, W or D of micro-batch `micro` on stage `stage` of path `path`."""

    kind: str
    micro: int
    stage: int
    path: int = 0


Slot = tuple[Op, ...]


@dataclass(frozen=True)
class Schedule:
    """`orders[rank]` is the rank's slots; `paths[path][stage]` the rank that holds the stage."""

    name: str
    orders: tuple[tuple[Slot, ...], ...]
    paths: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.orders)


def build_schedule(name: str, ranks: int, micro_batches: int, virtual: int = 1) -> Schedule:
    """The named schedule; `PlanError` when the numbers do not suit it."""
    p, m = ranks, micro_batches
    if p < 1 or m < 1:
        raise PlanError(f"a pipeline needs at least one rank and one micro-batch, not {p} and {m}")
    straight = (tuple(range(p)),)
    if name == "gpipe":
        orders = [[_one("F", i, r) for i in range(m)] + [_one("D", i, r) for i in range(m)] for r in range(p)]
        return _schedule(name, orders, straight)
    if name == "1f1b":
        return _schedule(name, [_one_f_one_b(p, m, r) for r in range(p)], straight)
    if name == "interleaved":
        if m % p:
            raise PlanError(f"interleaved needs micro-batches in multiples of {p} ranks; there are {m}")
        path = tuple(r for _ in range(virtual) for r in range(p))
        return _schedule(name, [_interleaved(p, m, virtual, r) for r in range(p)], (path,))
    if name in ("zb-h1", "zb-h2"):
        wide = name == "zb-h2"
        least = 2 * p - 1 if wide else p
        if m < least:
            raise PlanError(f"{name} on {p} ranks needs at least {least} micro-batches; there are {m}")
        return _schedule(name, [_zero_bubble_h(p, m, r, wide) for r in range(p)], straight)
    if name == "zb-v":
        if m < 2 * p - 1:
            raise PlanError(f"zb-v on {p} ranks needs at least {2 * p - 1} micro-batches; there are {m}")
        return _schedule(name, [_zero_bubble_v(p, m, r) for r in range(p)], (_v_path(p),))
    if name == "dualpipe":
        if p % 2 or m % 2 or m < 2 * p:
            raise PlanError(f"dualpipe needs an even number of ranks and an even number of at least twice as many "
                            f"micro-batches; there are {p} ranks and {m} micro-batches")  # fmt: skip
        up = tuple(reversed(range(p)))
        return _schedule(name, [_dual(p // 2, m // 2, r, p, True) for r in range(p)], (*straight, up))
    if name == "dualpipe-v":
        if m < 2 * p:
            raise PlanError(f"dualpipe-v on {p} ranks needs at least {2 * p} micro-batches; there are {m}")
        return _schedule(name, [_dual(p, m, r, p, False) for r in range(p)], (_v_path(p),))
    raise PlanError(f"no schedule {name!r}")


def _schedule(name: str, orders: list[list[Slot]], paths: tuple[tuple[int, ...], ...]) -> Schedule:
    return Schedule(name, tuple(tuple(order) for order in orders), paths)


def _one(kind: str, micro: int, stage: int, path: int = 0) -> Slot:
    return (Op(kind, micro, stage, path),)


def _v_path(p: int) -> tuple[int, ...]:
    return (*range(p), *reversed(range(p)))


def _one_f_one_b(p: int, m: int, rank: int) -> list[Slot]:
    warm = min(m, p - rank - 1)
    order = [_one("F", i, rank) for i in range(warm)]
    for i in range(m - warm):
        order += [_one("F", warm + i, rank), _one("D", i, rank)]
    return order + [_one("D", i, rank) for i in range(m - warm, m)]


def _interleaved(p: int, m: int, v: int, rank: int) -> list[Slot]:
    """Megatron-LM's order: rounds of p micro-batches pass chunk by chunk (Narayanan et al. 2021)."""

    def forward(k: int) -> Slot:
        chunk, micro = (k // p) % v, k // (p * v) * p + k % p
        return _one("F", micro, chunk * p + rank)

    def backward(k: int) -> Slot:
        chunk, micro = v - 1 - (k // p) % v, k // (p * v) * p + k % p
        return _one("D", micro, chunk * p + rank)

    total = m * v
    warm = min(total, 2 * (p - rank - 1) + (v - 1) * p)
    order = [forward(k) for k in range(warm)]
    for k in range(total - warm):
        order += [forward(warm + k), backward(k)]
    return order + [backward(k) for k in range(total - warm, total)]


def _zero_bubble_h(p: int, m: int, rank: int, wide: bool) -> list[Slot]:
    """ZB-H1 and ZB-H2 (Qi et al. 2023): more forwards at the start, and each W as late as the equal peak allows.

    H1 starts p - r forwards and defers r weight gradients: p micro-batches are held on every rank. H2 starts
    2 (p - r) - 1 and defers 2 r: 2p - 1.
    """
    warm = 2 * (p - rank) - 1 if wide else p - rank
    deferred = 2 * rank if wide else rank
    order = [_one("F", i, rank) for i in range(min(m, warm))]
    forwards, weights = min(m, warm), 0
    for i in range(m):
        order.append(_one("B", i, rank))
        if i >= deferred:
            order.append(_one("W", weights, rank))
            weights += 1
        if forwards < m:
            order.append(_one("F", forwards, rank))
            forwards += 1
    return order + [_one("W", i, rank) for i in range(weights, m)]


def _zero_bubble_v(p: int, m: int, rank: int) -> list[Slot]:
    """ZB-V (Qi et al. 2024): each rank holds stages r and 2p-1-r, and its last stage starts backward at once."""
    stages, order = (rank, 2 * p - 1 - rank), []
    count = {(kind, chunk): 0 for kind in "FBW" for chunk in (0, 1)}

    def add(*steps: tuple[str, int]) -> None:
        for kind, chunk in steps:
            order.append(_one(kind, count[kind, chunk], stages[chunk]))
            count[kind, chunk] += 1

    for _ in range(2 * (p - rank) - 1):
        add(("F", 0))
    for _ in range(rank):
        add(("F", 1), ("F", 0))
    for _ in range(p - rank):
        add(("F", 1), ("B", 1), ("W", 1))
    while count["F", 1] < count["F", 0] or count["F", 0] < m:
        if count["F", 0] < m:
            add(("F", 0))
        add(("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))
    for _ in range(rank):
        add(("B", 0), ("B", 1))
    for _ in range(p - rank):
        add(("B", 0), ("W", 0))
    while count["W", 1] < count["B", 1]:
        add(("W", 1))
    while count["W", 0] < count["B", 0]:
        add(("W", 0))
    return order


def _dual(half: int, m: int, rank: int, p: int, two_paths: bool) -> list[Slot]:
    """DualPipe and DualPipeV (DeepSeek-AI 2024): eight steps that overlap a forward with a backward of the other chunk.

    `m` is the micro-batches of each of the two chunks' streams. DualPipe: chunk 0 is path 0's stage r, chunk 1 path 1's,
    swapped in the lower half of the pipeline. DualPipeV: stages r and 2p-1-r of one path.
    """
    lower = two_paths and rank >= half
    k = p - 1 - rank if lower else rank
    order: list[Slot] = []
    pending: deque[Op] = deque()
    count = {(kind, chunk): 0 for kind in "FB" for chunk in (0, 1)}

    def op(kind: str, chunk: int) -> Op:
        stream = "F" if kind == "F" else "B"
        micro = count[stream, chunk]
        count[stream, chunk] += 1
        if not two_paths:
            return Op(kind, micro, rank if chunk == 0 else 2 * p - 1 - rank)
        path = chunk ^ int(lower)
        return Op(kind, micro, rank if path == 0 else p - 1 - rank, path)

    def backward(chunk: int, split: bool) -> None:
        done = op("B" if split else "D", chunk)
        order.append((done,))
        if split:
            pending.append(done._replace(kind="W"))

    def weight() -> None:
        if pending:
            order.append((pending.popleft(),))

    for _ in range(2 * (half - k - 1)):
        order.append((op("F", 0),))
    for _ in range(k + 1):
        order += [(op("F", 0),), (op("F", 1),)]
    for _ in range(half - k - 1):
        backward(1, True)
        weight()
        order.append((op("F", 1),))
    for i in range(m - 2 * half + k + 1):
        if i == 0 and k == half - 1:
            # The two middle ranks do not overlap the first pair: that shortens the bubble.
            order.append((op("F", 0),))
            backward(1, False)
        else:
            order.append((op("F", 0), op("D", 1)))
        order.append((op("F", 1), op("D", 0)))
    for _ in range(half - k - 1):
        backward(1, False)
        order.append((op("F", 1), op("D", 0)))
    split = False
    for i in range(k + 1):
        split = split or (i == (k + 1) // 2 and k % 2 == 1)
        backward(1, split)
        split = split or (i == (k + 1) // 2 and k % 2 == 0)
        backward(0, split)
    for _ in range(half - k - 1):
        weight()
        backward(0, split)
    for _ in range(k + 1):
        weight()
    return order
