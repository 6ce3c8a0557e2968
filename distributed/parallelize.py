"""Puts a transformer on a mesh: replaces what a rank holds a part of, and says where each parameter then lies."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from distributed.context_parallel import ContextAttention, ContextSplit
from distributed.errors import LayoutError
from distributed.experts import ExpertLayer, expert_groups
from distributed.groups import Group, Mesh
from distributed.mesh import refuse_unless_legal
from distributed.models.transformer import Block, GatedMLP, RMSNorm, SparseMLP, Stack, Tokens, Transformer
from distributed.placement import Placement, shard_along
from distributed.recompute import recompute_blocks
from distributed.tensor_parallel import Enter, RowLinear, Total, VocabularyCrossEntropySum, VocabularyEmbedding


@dataclass(frozen=True)
class ParallelStyle:
    """How the axes are used. `ulysses`: ranks of cp that swap tokens for heads, the rest is a ring. `ep`: neighbours inside

    dp_shard x cp, or with `ep_over_tp` inside dp_shard x cp x tp, over which experts lie. `compute`: the type that the
    model computes in, where it is narrower than that of the parameters, gradients and optimizer.
    """

    sequence_parallel: bool = True
    zigzag: bool = True
    ulysses: int = 1
    zero: int = 0
    recompute: str = "none"
    ep: int = 1
    ep_over_tp: bool = False
    compute: torch.dtype | None = None


@dataclass
class Parallelized:
    """The model in place on this rank, where its parameters lie by global name, and which tokens it is to be given."""

    model: Stack
    placements: dict[str, Placement]
    split: ContextSplit
    tokens_over: tuple[Group, ...]
    """Groups whose ranks hold other tokens: those of tp where they have parts of the sequences, and the data ranks."""

    def part(self, tokens: Tokens) -> Tokens:
        """This rank's part of whole sequences."""
        return self.split.part(tokens)


def parallelize(model: Stack, mesh: Mesh, style: ParallelStyle, sequence: int,
                cut_ends: "Callable[[Stack, Cut], None] | None" = None) -> Parallelized:  # fmt: skip
    """Cuts a model that every rank built alike over tp, gives it cp attention, and sets recompute; in place.

    `sequence` is tokens per sample. `cut_ends` cuts what comes before and after the blocks of a model that is no
    `Transformer`. `LayoutError` with the numbers when the layout does not divide the model.
    """
    sizes = model.sizes
    refuse_unless_legal(mesh.layout, sizes.for_layout(sequence), style.ep, style.ep_over_tp)
    if style.ep_over_tp and mesh.layout.tp > 1 and not style.sequence_parallel:
        raise LayoutError(f"experts over tp={mesh.layout.tp} need sequence parallelism: without it all tp ranks hold the same "
                          "tokens, which would be sent as often")  # fmt: skip
    split = ContextSplit.of(mesh, style.ulysses, style.zigzag)
    split.order(sequence)
    placements = {name: Placement() for name, _ in model.named_parameters()}
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    tp = mesh.group("tp")
    if tp.size > 1:
        cut = Cut(tp, style.sequence_parallel, placements)
        kv_copies, _ = mesh.carve(tp, max(1, tp.size // sizes.kv_heads))
        for number, block in enumerate(blocks):
            _cut_block(block, f"blocks.{number}", cut, kv_copies)
        if cut_ends is not None:
            cut_ends(model, cut)
        else:
            _cut_ends(model, cut)
    if sizes.experts:
        _share_experts(blocks, mesh, style, placements)
    if mesh.group("cp").size > 1:
        for block in blocks:
            block.attention.core = ContextAttention(split, sizes.causal)
    recompute_blocks(blocks, style.recompute)
    in_parts = style.sequence_parallel and tp.size > 1
    return Parallelized(model, placements, split, (tp, mesh.data) if in_parts else (mesh.data,))


@dataclass
class Cut:
    """How the modules of a model are cut over the tp `group`; `placements` takes down where each parameter then lies.

    `sequence`: outside the cut regions a rank has its part of the tokens alone.
    """

    group: Group
    sequence: bool
    placements: dict[str, Placement]

    def whole(self, name: str) -> None:
        """Every rank holds all of it; on a part of the tokens it sees a part of the gradient."""
        self.placements[name] = Placement(
            summed_over=self.group if self.sequence else None, counted=self.group.index == 0
        )

    def alike(self, name: str) -> None:
        """Every rank holds all of it and sees the whole gradient."""
        self.placements[name] = Placement(counted=self.group.index == 0)

    def shard(self, name: str, tensor: torch.Tensor, dim: int) -> nn.Parameter:
        """This rank's part along `dim`."""
        local, self.placements[name] = shard_along(tensor.detach(), self.group, dim, what=name)
        return nn.Parameter(local)

    def table(self, name: str, weight_VD: torch.Tensor) -> torch.Tensor:
        """This rank's rows of an embedding; where they do not divide the last rank's end in zeros that no id names."""
        rows = weight_VD.shape[0]
        padded_VD = nn.functional.pad(weight_VD.detach(), (0, 0, 0, -rows % self.group.size))
        local, placement = shard_along(padded_VD, self.group, 0, what=name)
        self.placements[name] = dataclasses.replace(placement, whole=rows)
        return local

    def columns(self, linear: nn.Linear, name: str) -> None:
        """A linear by its outputs, in place."""
        linear.weight = self.shard(f"{name}.weight", linear.weight, 0)
        if linear.bias is not None:
            linear.bias = self.shard(f"{name}.bias", linear.bias, 0)

    def rows(self, linear: nn.Module, name: str) -> RowLinear:
        """A linear by its inputs."""
        assert isinstance(linear, nn.Linear)
        weight = self.shard(f"{name}.weight", linear.weight, 1)
        self.whole(f"{name}.bias")
        return RowLinear(weight.detach(), linear.bias.detach().clone(), self.group, self.sequence)


def _cut_block(block: Block, name: str, cut: Cut, kv_copies: Group) -> None:
    attention = block.attention
    for norm in ("norm_attention", "norm_mlp"):
        cut.whole(f"{name}.{norm}.weight")
    attention.enter = Enter(cut.group, cut.sequence)
    if attention.wqkv is not None:
        # A key-value head's queries, keys and values lie together: a part of the rows is some heads with all that is theirs.
        cut.columns(attention.wqkv, f"{name}.attention.wqkv")
    for part in () if attention.wqkv is not None else ("wq", "wk", "wv"):
        if part == "wq" or kv_copies.size == 1:
            cut.columns(getattr(attention, part), f"{name}.attention.{part}")
        else:
            _share_kv(getattr(attention, part), f"{name}.attention.{part}", cut, kv_copies)
    attention.wo = cut.rows(attention.wo, f"{name}.attention.wo")
    mlp = block.mlp
    if isinstance(mlp, GatedMLP):
        mlp.enter = Enter(cut.group, cut.sequence)
        cut.columns(mlp.gate, f"{name}.mlp.gate")
        cut.columns(mlp.up, f"{name}.mlp.up")
        mlp.down = cut.rows(mlp.down, f"{name}.mlp.down")
    else:
        # Experts are not cut over tp: with sequence parallelism each rank routes its own tokens.
        for part, _ in mlp.named_parameters():
            cut.whole(f"{name}.mlp.{part}")
    if cut.sequence:
        for dropout in (block.drop_attention, block.drop_mlp):
            dropout.sequence_shard = (cut.group.index, cut.group.size)


def _share_kv(linear: nn.Linear, name: str, cut: Cut, copies: Group) -> None:
    """Fewer key-value heads than ranks: `copies` neighbours hold one head, and each sees its own queries' gradient."""
    heads = cut.group.size // copies.size
    size = linear.weight.shape[0] // heads
    start = cut.group.index // copies.size * size
    placement = Placement(0, start, linear.weight.shape[0], cut.group, summed_over=copies, counted=copies.index == 0)
    linear.weight = nn.Parameter(linear.weight.detach()[start : start + size].clone())
    linear.bias = nn.Parameter(linear.bias.detach()[start : start + size].clone())
    cut.placements[f"{name}.weight"] = cut.placements[f"{name}.bias"] = placement


def _share_experts(blocks: list[Block], mesh: Mesh, style: ParallelStyle, placements: dict[str, Placement]) -> None:
    tp = mesh.group("tp")
    in_parts = style.sequence_parallel and tp.size > 1
    ep, copies = expert_groups(mesh, style.ep, style.ep_over_tp)
    for number, block in enumerate(blocks):
        assert isinstance(block.mlp, SparseMLP)
        old = block.mlp.layer
        new = ExpertLayer(
            block.norm_mlp.weight.shape[0], old.bank.down.shape[1], old.router.settings, ep=ep,
            queue=mesh.data, split=mesh.group("cp", "tp") if in_parts else mesh.group("cp"),
            capacity_factor=old.capacity_factor,
        )  # fmt: skip
        new.router, new.shared = old.router, old.shared
        for part in ("gate_up", "down"):
            name = f"blocks.{number}.mlp.layer.bank.{part}"
            local, slice_ = shard_along(getattr(old.bank, part).detach(), ep, 0, what=name)
            setattr(new.bank, part, nn.Parameter(local))
            whole = Placement() if style.ep_over_tp else placements[name]
            placements[name] = dataclasses.replace(
                whole, dim=0, start=slice_.start, whole=slice_.whole, over=ep, copies=copies
            )
        block.mlp.layer = new
        if in_parts:
            block.mlp.total = Total(tp)
            block.mlp.sequence_shard = (tp.index, tp.size)


def _cut_ends(model: Stack, cut: Cut) -> None:
    assert isinstance(model, Transformer), f"{type(model).__name__} needs cut_ends of its own"
    weight = cut.shard("embedding.weight", model.embedding.weight, 0)
    model.embedding = VocabularyEmbedding(weight.detach(), cut.group, cut.sequence)
    assert isinstance(model.norm, RMSNorm)
    cut.whole("norm.weight")
    model.enter_head = Enter(cut.group, cut.sequence)
    if model.head is not None:
        cut.columns(model.head, "head")
    model.loss = VocabularyCrossEntropySum(cut.group)
    if cut.sequence:
        model.drop_embedding.sequence_shard = (cut.group.index, cut.group.size)
