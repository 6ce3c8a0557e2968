"""The bytes of tensors that a rank made and still holds, looked at after every forward and gradient of inputs."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from distributed import Rank
from distributed.groups import Mesh
from distributed.models.transformer import Transformer
from distributed.parallelize import parallelize
from distributed.pipeline.stage import StageWork
from distributed.pipelined import PipelinedTransformer
from distributed.planner.layout import Layout
from tests.distributed.parity import Case
from tests.distributed.planner.running import batches, evenly_routed

SEQUENCE = 64


class Alive(TorchDispatchMode):
    """Every storage made inside it, for as long as somebody holds it; views of `given` tensors are not made."""

    def __init__(self, given):
        super().__init__()
        self._given = {tensor.untyped_storage()._cdata for tensor in given}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outcome = func(*args, **(kwargs or {}))
        for tensor in outcome if isinstance(outcome, tuple | list) else (outcome,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata in self._given:
                    continue
                if storage._cdata not in self._made or self._made[storage._cdata][0].expired():
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return outcome

    def bytes(self, but: set[int]) -> int:
        """Held now, without the storages of these numbers."""
        self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
        return sum(size for key, (_, size) in self._made.items() if key not in but)


def kept(rank: Rank, cases: list[tuple[Case, Layout]]) -> list[int]:
    """The most bytes that this rank held after a forward or a gradient of inputs, of each case's one step."""
    return [_kept(rank, case, layout) for case, layout in cases]


def _kept(rank: Rank, case: Case, layout: Layout) -> int:
    mesh = Mesh(case.layout, rank)
    parallel = parallelize(Transformer(case.sizes, torch.Generator().manual_seed(1)), mesh, case.style, SEQUENCE)
    evenly_routed(parallel)
    mine = batches(mesh, layout, SEQUENCE, case.sizes.vocabulary)
    if layout.pp == 1:
        part = parallel.part(mine[0])
        tokens = [value for value in vars(part).values() if isinstance(value, torch.Tensor)]
        with Alive([*parallel.model.parameters(), *tokens]) as alive:
            loss = parallel.model(part, 0)
            found = alive.bytes(set())
        assert loss.requires_grad
        return found
    piped = PipelinedTransformer(parallel, mesh, case.style, case.schedule, case.virtual)
    most = [0]
    worked = {name: getattr(StageWork, name) for name in ("forward", "backward_input")}

    def looked_at(work):
        def call(self, *given):
            handed = work(self, *given)
            gradients = {p.grad.untyped_storage()._cdata for p in piped.data.parameters() if p.grad is not None}
            most[0] = max(most[0], alive.bytes(gradients))
            return handed

        return call

    for name, work in worked.items():
        setattr(StageWork, name, looked_at(work))
    try:
        with Alive([*parallel.model.parameters()]) as alive:
            piped.gradients(mine, 0)
    finally:
        for name, work in worked.items():
            setattr(StageWork, name, work)
    return most[0]
