"""How two sides are measured alike: memory of either alone, then step by step in turn."""

from benchmarks.beside_torch.alive import peak_mib
from benchmarks.beside_torch.workload import Beside, Case, timed
from distributed import Rank

_WARM_UP = 2


def compare(rank: Rank, case: Case, pairs: int) -> Beside:
    """Memory of either side alone, then both in turn, step by step, in the same processes."""
    ours_mib, theirs_mib = (peak_mib(rank, builder, case.work) for builder in (case.ours, case.theirs))
    sides = case.ours(rank, case.work), case.theirs(rank, case.work)
    seconds: tuple[list[float], list[float]] = ([], [])
    apart = 0.0
    for pair in range(_WARM_UP + pairs):
        losses = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):
            took, losses[which] = timed(rank, sides[which], pair)
            seconds[which].append(took)
        if pair == 0:
            apart = abs(losses[0] - losses[1]) / abs(losses[1])
    return Beside(tuple(seconds[0][_WARM_UP:]), tuple(seconds[1][_WARM_UP:]), apart, ours_mib, theirs_mib)
