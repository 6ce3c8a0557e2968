"""A transformer stack in plain torch: grouped-query attention with rotary positions, gated MLP, packed documents, tied head.

It knows nothing of ranks. What a mesh exchanges stands as a module of its own: `enter` (identity here), `core`, `loss`.
Legend: B samples, L tokens, D width, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from distributed.dropout import Dropout
from distributed.experts import ExpertLayer, RouterSettings
from distributed.mesh import ModelSizes
from distributed.models.attention import visible

NO_TARGET = -100
"""The target of a token that takes no part in the loss."""


@dataclass(frozen=True)
class TransformerSizes:
    """The shape of a stack. `kv_heads` divides `heads`; `tied`: the head's weight is the embedding's.

    With `experts`, every block's MLP is a sparse mixture of so many, `top_k` for a token, and `shared_experts` more that every
    token uses; `score`, `balance`, `z` and `bias_step` are those of `RouterSettings`, `capacity_factor` that of `ExpertLayer`,
    over the tokens of a micro-batch on all data ranks. `fused_qkv`: one projection gives queries, keys and values.
    """

    vocabulary: int = 64
    layers: int = 2
    width: int = 16
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 32
    dropout: float = 0.1
    tied: bool = True
    causal: bool = True
    experts: int = 0
    top_k: int = 2
    fused_qkv: bool = False
    score: str = "softmax"
    balance: float = 0.01
    z: float = 0.0
    bias_step: float = 0.0
    shared_experts: int = 0
    capacity_factor: float | None = None

    @property
    def router(self) -> RouterSettings:
        """How tokens are routed."""
        return RouterSettings(
            self.experts, self.top_k, self.score, balance=self.balance, z=self.z, bias_step=self.bias_step
        )

    def for_layout(self, sequence: int) -> ModelSizes:
        """What a layout must divide."""
        return ModelSizes(
            self.heads, self.kv_heads, self.layers, self.vocabulary, self.feed_forward, sequence, self.experts,
            fused_qkv=self.fused_qkv,
        )  # fmt: skip


@dataclass(frozen=True)
class Tokens:
    """A batch of packed sequences, or a rank's part of one; all (B, L) int64.

    `positions` restart at 0 in every document, `documents` tells documents of a sample apart (`~d`: a leaf of d, see
    `attention.visible`), `slots` numbers the tokens of the global batch. `valid_BL` is false for padding, which no expert
    gets; None: there is none. Where `ids` are a part of the sequence, `context_*` are those of all of it, in the order of
    the parts. A model with other inputs adds fields, (B, L, ...) each.
    """

    ids: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor
    slots: torch.Tensor
    context_documents: torch.Tensor | None = None
    context_slots: torch.Tensor | None = None
    valid_BL: torch.Tensor | None = None

    @classmethod
    def packed(cls, ids_BL: torch.Tensor, documents_BL: torch.Tensor, first_sample: int = 0) -> "Tokens":
        """Next-token prediction inside each document; a document's last token has no target."""
        samples, length = ids_BL.shape
        place_L = torch.arange(length, device=ids_BL.device)
        starts_BL = torch.ones_like(documents_BL, dtype=torch.bool)
        starts_BL[:, 1:] = documents_BL[:, 1:] != documents_BL[:, :-1]
        start_BL = torch.where(starts_BL, place_L, 0).cummax(dim=1).values
        targets_BL = torch.full_like(ids_BL, NO_TARGET)
        targets_BL[:, :-1] = torch.where(starts_BL[:, 1:], NO_TARGET, ids_BL[:, 1:])
        sample_B1 = torch.arange(first_sample, first_sample + samples, device=ids_BL.device)[:, None]
        return cls(ids_BL, targets_BL, place_L - start_BL, documents_BL, sample_B1 * length + place_L)

    def rows(self, first: int, last: int) -> "Tokens":
        """Samples `first` to `last`, the last not included."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Tokens(**{name: None if part is None else part[first:last] for name, part in parts.items()})

    @functools.cached_property
    def one_document(self) -> bool:
        """Whether each sample is one document without leaves: a causal mask, or none, says all."""
        return bool(((self.documents == self.documents[:, :1]) & (self.documents >= 0)).all())

    @functools.cached_property
    def turns(self) -> dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]]:
        """Cosines and sines of the positions by (pairs, type), kept because every layer needs the same."""
        return {}

    @property
    def weight(self) -> float:
        """By what the sum of losses is divided, summed over the global batch: tokens that have a target."""
        return float((self.targets != NO_TARGET).sum())


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 at least."""

    def __init__(self, width: int, epsilon: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden_BLD: torch.Tensor) -> torch.Tensor:
        """Same shape, each token scaled to unit mean square."""
        wide = hidden_BLD.to(torch.promote_types(hidden_BLD.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return scaled.to(hidden_BLD.dtype) * self.weight


def fused(q_BLHD: torch.Tensor, k_BLKD: torch.Tensor, v_BLKD: torch.Tensor, seen_BLL: torch.Tensor | None, causal: bool
          ) -> torch.Tensor:  # fmt: skip
    """Attention over all tokens of a sample by PyTorch's kernel, (B, L, H, D); `seen_BLL` None: the causal mask or none."""
    mask_B1LL = None if seen_BLL is None else seen_BLL[:, None]
    out_BHLD = F.scaled_dot_product_attention(
        q_BLHD.transpose(1, 2), k_BLKD.transpose(1, 2), v_BLKD.transpose(1, 2), mask_B1LL,
        is_causal=causal and seen_BLL is None, enable_gqa=k_BLKD.shape[2] != q_BLHD.shape[2],
    )  # fmt: skip
    return out_BHLD.transpose(1, 2)


class WholeAttention(nn.Module):
    """Attention where this rank holds all tokens of its samples."""

    def __init__(self, causal: bool):
        super().__init__()
        self.causal = causal

    def forward(self, q_BLHD: torch.Tensor, k_BLKD: torch.Tensor, v_BLKD: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """(B, L, H, D)."""
        seen_BLL = None
        if not tokens.one_document:
            seen_BLL = visible(tokens.slots, tokens.slots, tokens.documents, tokens.documents, self.causal)
        return fused(q_BLHD, k_BLKD, v_BLKD, seen_BLL, self.causal)


class Attention(nn.Module):
    """Self-attention; how many heads there are here is read from the weights' shapes.

    The rows of a fused projection are interleaved: for each key-value head its queries, then its key, then its value.
    """

    def __init__(self, sizes: TransformerSizes):
        super().__init__()
        self.head_channels = sizes.width // sizes.heads
        self.enter: nn.Module = nn.Identity()
        self.queries = sizes.heads // sizes.kv_heads
        self.wqkv: nn.Linear | None = None
        if sizes.fused_qkv:
            self.wqkv = nn.Linear(sizes.width, (sizes.heads + 2 * sizes.kv_heads) * self.head_channels)
        else:
            self.wq = nn.Linear(sizes.width, sizes.heads * self.head_channels)
            self.wk = nn.Linear(sizes.width, sizes.kv_heads * self.head_channels)
            self.wv = nn.Linear(sizes.width, sizes.kv_heads * self.head_channels)
        self.core: nn.Module = WholeAttention(sizes.causal)
        self.wo: nn.Module = nn.Linear(sizes.heads * self.head_channels, sizes.width)

    def forward(self, hidden_BLD: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """(B, L, D)."""
        hidden_BLD = self.enter(hidden_BLD)
        if self.wqkv is not None:
            heads_BLKXD = self.wqkv(hidden_BLD).unflatten(-1, (-1, self.queries + 2, self.head_channels))
            q, (k, v) = heads_BLKXD[..., : self.queries, :].flatten(2, 3), heads_BLKXD[..., self.queries :, :].unbind(3)
        else:
            q, k, v = (w(hidden_BLD).unflatten(-1, (-1, self.head_channels)) for w in (self.wq, self.wk, self.wv))
        out_BLHD = self.core(rotated(q, tokens), rotated(k, tokens), v, tokens)
        return self.wo(out_BLHD.flatten(2))


class GatedMLP(nn.Module):
    """down(silu(gate(x)) x up(x))."""

    def __init__(self, sizes: TransformerSizes):
        super().__init__()
        self.enter: nn.Module = nn.Identity()
        self.gate = nn.Linear(sizes.width, sizes.feed_forward)
        self.up = nn.Linear(sizes.width, sizes.feed_forward)
        self.down: nn.Module = nn.Linear(sizes.feed_forward, sizes.width)

    def forward(self, hidden_BLD: torch.Tensor) -> torch.Tensor:
        """(B, L, D)."""
        hidden_BLD = self.enter(hidden_BLD)
        return self.down(F.silu(self.gate(hidden_BLD)) * self.up(hidden_BLD))


class SparseMLP(nn.Module):
    """A mixture of experts in the MLP's place. `total` sums a router's loss over ranks with other tokens of a sample.

    `sequence_shard` (index, count) says which part of the tokens' second dim the hidden states hold.
    """

    def __init__(self, sizes: TransformerSizes):
        super().__init__()
        self.layer = ExpertLayer(sizes.width, sizes.feed_forward, sizes.router, capacity_factor=sizes.capacity_factor,
                                 shared=sizes.shared_experts)  # fmt: skip
        self.total: nn.Module = nn.Identity()
        self.sequence_shard = (0, 1)

    def forward(self, hidden_BLD: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, L, D) and the router's loss, a sum over samples."""
        samples, length, _ = hidden_BLD.shape
        sample_N = torch.arange(samples, device=hidden_BLD.device).repeat_interleave(length)
        index, count = self.sequence_shard
        valid_N = None if tokens.valid_BL is None else tokens.valid_BL.chunk(count, dim=1)[index].flatten()
        mixed_ND, loss = self.layer(hidden_BLD.flatten(0, 1), valid_N, sample_N, samples)
        return mixed_ND.unflatten(0, (samples, length)), self.total(loss)


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual after dropout. `run` may recompute in the backward."""

    def __init__(self, sizes: TransformerSizes, number: int):
        super().__init__()
        self.norm_attention, self.attention = RMSNorm(sizes.width), Attention(sizes)
        self.norm_mlp = RMSNorm(sizes.width)
        self.mlp: GatedMLP | SparseMLP = SparseMLP(sizes) if sizes.experts else GatedMLP(sizes)
        self.drop_attention = Dropout(sizes.dropout, f"blocks.{number}.attention")
        self.drop_mlp = Dropout(sizes.dropout, f"blocks.{number}.mlp")
        self.run: Callable[..., tuple[torch.Tensor, torch.Tensor]] = call

    def forward(self, hidden_BLD: torch.Tensor, tokens: Tokens, key: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, L, D) and the loss of the block's own (its router's; 0 where it has none)."""
        return self.run(self.body, hidden_BLD, tokens, key)

    def body(self, hidden_BLD: torch.Tensor, tokens: Tokens, key: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What `run` runs."""
        attended_BLD = self.attention(self.norm_attention(hidden_BLD), tokens)
        hidden_BLD = hidden_BLD + self.drop_attention(attended_BLD, tokens.slots, key)
        normed_BLD = self.norm_mlp(hidden_BLD)
        made = self.mlp(normed_BLD, tokens) if isinstance(self.mlp, SparseMLP) else self.mlp(normed_BLD)
        mixed_BLD, loss = made if isinstance(made, tuple) else (made, made.new_zeros(()))
        return hidden_BLD + self.drop_mlp(mixed_BLD, tokens.slots, key), loss


class CrossEntropySum(nn.Module):
    """The sum over tokens that have a target; the caller divides by the global count."""

    def forward(self, logits_BLV: torch.Tensor, targets_BL: torch.Tensor) -> torch.Tensor:
        """A scalar, in float32 at least."""
        wide_NV = logits_BLV.flatten(0, 1).to(torch.promote_types(logits_BLV.dtype, torch.float32))
        return F.cross_entropy(wide_NV, targets_BL.flatten(), ignore_index=NO_TARGET, reduction="sum")


class Stack(nn.Module):
    """Blocks between two ends; what the parallel axes and pipelines ask of a model, whatever it predicts.

    `embed` uses the children `first_parts`, `loss_sum` the children `last_parts`; one in both is held by the first and
    the last stage of a pipeline. `sizes` is the blocks' shape.
    """

    sizes: TransformerSizes
    blocks: nn.ModuleList
    first_parts: tuple[str, ...]
    last_parts: tuple[str, ...]

    def embed(self, tokens: Any, key: int) -> torch.Tensor:
        """The first stage's input to the blocks (B, L, D)."""
        raise NotImplementedError

    def loss_sum(self, hidden_BLD: torch.Tensor, tokens: Any) -> torch.Tensor:
        """What the last stage makes of the blocks' output: a sum, which the caller divides by the global weight."""
        raise NotImplementedError

    def forward(self, tokens: Any, key: int, end: Callable[[torch.Tensor, Any], torch.Tensor] | None = None
                ) -> torch.Tensor:  # fmt: skip
        """The loss sum, or what `end` makes of the blocks' output. `key` changes every step, equal on all ranks."""
        hidden_BLD, own = through(self.blocks, self.embed(tokens, key), tokens, key)
        return self.loss_sum(hidden_BLD, tokens) + own if end is None else end(hidden_BLD, tokens)


class Transformer(Stack):
    """Embedding, blocks, norm and head. `model(tokens, key)` is the sum of the tokens' cross-entropies."""

    def __init__(self, sizes: TransformerSizes, generator: torch.Generator):
        super().__init__()
        self.sizes = sizes
        self.first_parts = ("embedding",)
        self.last_parts = ("embedding", "norm") if sizes.tied else ("norm", "head")
        self.embedding: nn.Module = nn.Embedding(sizes.vocabulary, sizes.width)
        self.drop_embedding = Dropout(sizes.dropout, "embedding")
        self.blocks = nn.ModuleList(Block(sizes, number) for number in range(sizes.layers))
        self.norm: nn.Module = RMSNorm(sizes.width)
        self.enter_head: nn.Module = nn.Identity()
        self.head = None if sizes.tied else nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.loss: nn.Module = CrossEntropySum()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" not in name:
                    parameter.normal_(0.0, 0.2, generator=generator)

    def embed(self, tokens: Tokens, key: int) -> torch.Tensor:
        """The first stage's input to the blocks (B, L, D)."""
        return self.drop_embedding(self.embedding(tokens.ids), tokens.slots, key)

    def loss_sum(self, hidden_BLD: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """What the last stage makes of the blocks' output."""
        weight_VD = self.embedding.weight if self.head is None else self.head.weight
        return self.loss(F.linear(self.enter_head(self.norm(hidden_BLD)), weight_VD), tokens.targets)


def through(blocks: Iterable[nn.Module], hidden_BLD: torch.Tensor, tokens: Tokens, key: int
            ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Hidden states after `blocks`, and the sum of the blocks' own losses."""
    own = hidden_BLD.new_zeros(())
    for block in blocks:
        hidden_BLD, loss = block(hidden_BLD, tokens, key)
        own = own + loss
    return hidden_BLD, own


def call(
    body: Callable[..., tuple[torch.Tensor, torch.Tensor]], *arguments: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs a block as it is."""
    return body(*arguments)


def rotated(heads_BLHD: torch.Tensor, tokens: Tokens, base: float = 10_000.0) -> torch.Tensor:
    """Rotary positions (Su et al. 2021): pairs (d, d + D/2) turned by position x base^(-2d/D)."""
    half = heads_BLHD.shape[-1] // 2
    type_ = torch.promote_types(heads_BLHD.dtype, torch.float32)
    if (half, type_) not in tokens.turns:
        speed_D = base ** (-torch.arange(half, device=heads_BLHD.device, dtype=type_) / half)
        angle_BL1D = (tokens.positions[..., None].to(type_) * speed_D)[:, :, None]
        tokens.turns[half, type_] = angle_BL1D.cos(), angle_BL1D.sin()
    cos, sin = tokens.turns[half, type_]
    first, second = heads_BLHD[..., :half].to(type_), heads_BLHD[..., half:].to(type_)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(heads_BLHD.dtype)
