"""Model descriptions: the sizes from which parameters, FLOPs, bytes and memory follow.

One description covers a transformer (grouped-query attention, gated feed-forward, experts), a multi-task ranker
(tables and MLPs, no layers) and a behaviour-sequence ranker (tables, layers and MLPs). h = hidden, s = sequence,
V = vocabulary, f = feed-forward width, all in elements; one sample is one sequence.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from distributed.planner.described import Described, Figure, Size
from distributed.planner.errors import PlanError

# A search looks at every split of the layers between the two ends: more than this many would not come to an end.
Layers = Annotated[int, Field(ge=0, le=10_000)]


@dataclass(frozen=True)
class Experts(Described):
    """Mixture of experts in every `every`-th layer: `top_k` of `count` per token, each of width `ffn`, beside `shared_ffn`.

    `capacity_factor` 0 drops no token; above 0 each expert takes at most factor x tokens x top_k / count.
    """

    count: Size
    top_k: Size
    ffn: Size
    shared_ffn: Size = 0
    every: Size = 1
    capacity_factor: Figure = 0.0

    def __post_init__(self) -> None:
        if min(self.count, self.top_k, self.ffn, self.every) < 1 or self.top_k > self.count or self.shared_ffn < 0:
            raise PlanError(
                f"{self.top_k} of {self.count} experts of width {self.ffn} in every {self.every} layers cannot be"
            )


@dataclass(frozen=True)
class Table(Described):
    """One embedding table, looked up `lookups` times per sample; its rows are spread over all data ranks."""

    name: str
    rows: Size
    dim: Size
    lookups: Size = 1

    def __post_init__(self) -> None:
        if min(self.rows, self.dim, self.lookups) < 1:
            raise PlanError(
                f"table {self.name}: rows {self.rows}, dim {self.dim} and lookups {self.lookups} must be at least 1"
            )


@dataclass(frozen=True)
class Mlp(Described):
    """`copies` of a chain of linear layers (an MMoE's experts, gates or towers), on every data rank, `rows` times a sample

    (once a candidate, where a sample has several).
    """

    name: str
    widths: tuple[Size, ...]
    copies: Size = 1
    rows: Size = 1

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 0 or min(self.copies, self.rows) < 1:
            raise PlanError(
                f"MLP {self.name}: {self.copies} copies of widths {list(self.widths)}; two widths are needed at least"
            )

    @property
    def weights(self) -> int:
        """Multiply-adds of a row."""
        return self.copies * sum(a * b for a, b in zip(self.widths, self.widths[1:]))

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.weights + self.copies * sum(self.widths[1:])


@dataclass(frozen=True)
class Model(Described):
    """Sizes of one model. `kv_heads` 0 means as many as `heads`, `ffn` 0 means 4 h, `head_dim` 0 means h / heads.

    `platform`: it runs as `distributed.models` has it, without fused kernels, and is timed and weighed so; else as
    published frameworks run it.
    """

    name: str
    layers: Layers = 0
    hidden: Size = 0
    heads: Size = 0
    sequence: Size = 1
    vocab: Size = 0
    kv_heads: Size = 0
    head_dim: Size = 0
    ffn: Size = 0
    gated: bool = False
    biases: bool = False
    tied: bool = False
    learned_positions: bool = False
    final_norm: bool = True
    norm_biases: bool = True
    flash: bool = True
    dropout: bool = False
    causal: bool = True
    platform: bool = False
    experts: Experts | None = None
    tables: tuple[Table, ...] = ()
    mlps: tuple[Mlp, ...] = ()

    def __post_init__(self) -> None:
        if self.layers < 0 or (not self.layers and not self.tables and not self.mlps):
            raise PlanError(f"model {self.name} has {self.layers} layers and neither tables nor MLPs: nothing to plan")
        if self.layers and min(self.hidden, self.heads, self.sequence) < 1:
            raise PlanError(
                f"model {self.name}: hidden {self.hidden}, heads {self.heads} and sequence {self.sequence} must be at least 1"
            )
        if min(self.vocab, self.kv_heads, self.head_dim, self.ffn) < 0 or self.sequence < 1:
            raise PlanError(f"model {self.name}: a size is below zero")
        if self.layers and not self.head_dim and self.hidden % self.heads:
            raise PlanError(f"model {self.name}: hidden {self.hidden} is not a multiple of {self.heads} heads")
        if self.layers and self.heads % self.key_heads:
            raise PlanError(f"model {self.name}: {self.heads} heads are not a multiple of {self.key_heads} kv heads")

    @cached_property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @cached_property
    def query_width(self) -> int:
        """heads x head_dim."""
        return self.heads * (self.head_dim or (self.hidden // self.heads if self.heads else 0))

    @cached_property
    def key_width(self) -> int:
        """kv_heads x head_dim, for keys and again for values."""
        return self.query_width * self.key_heads // max(self.heads, 1)

    @cached_property
    def width(self) -> int:
        """The dense feed-forward's width."""
        return self.ffn or 4 * self.hidden

    @cached_property
    def up_matrices(self) -> int:
        """Matrices into the feed-forward: two when gated."""
        return 2 if self.gated else 1

    @cached_property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers // self.experts.every if self.experts else 0

    @cached_property
    def attention_parameters(self) -> int:
        """One layer's projections, with biases where the model has them."""
        h, q, k = self.hidden, self.query_width, self.key_width
        return h * (q + 2 * k) + q * h + (q + 2 * k + h if self.biases else 0)

    def ffn_parameters(self, width: int) -> int:
        """One feed-forward of `width`."""
        biases = self.up_matrices * width + self.hidden if self.biases else 0
        return (self.up_matrices + 1) * self.hidden * width + biases

    @cached_property
    def expert_parameters(self) -> int:
        """One expert; the platform's have no biases."""
        if self.experts is None:
            return 0
        ffn = self.experts.ffn
        return (self.up_matrices + 1) * self.hidden * ffn if self.platform else self.ffn_parameters(ffn)

    @cached_property
    def shared_parameters(self) -> int:
        """The feed-forward beside the experts that every token passes."""
        if self.experts is None or not self.experts.shared_ffn:
            return 0
        ffn = self.experts.shared_ffn
        return (self.up_matrices + 1) * self.hidden * ffn if self.platform else self.ffn_parameters(ffn)

    @cached_property
    def norm_width(self) -> int:
        """Parameters of one norm: a scale, and a shift in a model with biases unless `norm_biases` is off."""
        return self.hidden * (2 if self.biases and self.norm_biases else 1)

    @cached_property
    def norm_parameters(self) -> int:
        """One layer's two norms."""
        return 2 * self.norm_width

    @cached_property
    def final_norm_parameters(self) -> int:
        """The norm after the last layer."""
        return self.norm_width if self.layers and self.final_norm else 0

    def layer_parameters(self, moe: bool) -> tuple[int, int]:
        """(dense, expert) parameters of one layer."""
        dense = self.attention_parameters + self.norm_parameters
        if not moe or self.experts is None:
            return dense + self.ffn_parameters(self.width), 0
        e = self.experts
        dense += self.hidden * e.count + self.shared_parameters
        return dense, e.count * self.expert_parameters

    @cached_property
    def embedding_parameters(self) -> int:
        """Token embedding and learned positions."""
        return self.vocab * self.hidden + (self.sequence * self.hidden if self.learned_positions else 0)

    @cached_property
    def head_parameters(self) -> int:
        """The output matrix where it is not tied to the embedding."""
        return 0 if self.tied else self.vocab * self.hidden

    @cached_property
    def table_parameters(self) -> int:
        """All embedding tables."""
        return sum(table.rows * table.dim for table in self.tables)

    @cached_property
    def mlp_parameters(self) -> int:
        """All MLPs."""
        return sum(mlp.parameters for mlp in self.mlps)

    @cached_property
    def parameters(self) -> int:
        """All parameters, exactly."""
        dense, _ = self.layer_parameters(False)
        moe = sum(self.layer_parameters(True)) if self.experts else 0
        stack = (self.layers - self.moe_layers) * dense + self.moe_layers * moe
        ends = self.embedding_parameters + self.head_parameters
        return stack + ends + self.final_norm_parameters + self.table_parameters + self.mlp_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token passes through."""
        if self.experts is None:
            return self.parameters
        idle = self.experts.count - self.experts.top_k
        return self.parameters - self.moe_layers * idle * self.expert_parameters

    def layer_forward_flops(self, moe: bool = False) -> float:
        """One layer, one sample: 2 x weights x s and 4 s^2 x heads x head_dim of attention (not halved for causality)."""
        s, q, k, h = self.sequence, self.query_width, self.key_width, self.hidden
        matrices = h * (q + 2 * k) + q * h
        if moe and self.experts:
            wide = self.experts.top_k * self.experts.ffn + self.experts.shared_ffn
            matrices += (self.up_matrices + 1) * h * wide + h * self.experts.count
        else:
            matrices += (self.up_matrices + 1) * h * self.width
        return 2.0 * s * matrices + 4.0 * s * s * q

    def training_flops(self, samples: float, recompute: str = "none") -> float:
        """FLOPs executed for `samples` forward and backward: 72 B L s h^2 (1 + s/6h + V/12hL) for a plain transformer.

        Backward is twice forward; "full" runs the layers forward once more (96 ... V/16Lh). "selective" counts as published,
        s/3h in place of s/6h: three times the attention core's forward, though only one forward is run again.
        """
        dense, moe = self.layers - self.moe_layers, self.moe_layers
        stack = dense * self.layer_forward_flops() + moe * self.layer_forward_flops(True)
        rest = 2.0 * self.sequence * self.hidden * self.vocab + 2.0 * sum(mlp.rows * mlp.weights for mlp in self.mlps)
        again = {"none": 0.0, "full": stack, "selective": 12.0 * self.sequence**2 * self.query_width * self.layers}
        return samples * (3.0 * (stack + rest) + again[recompute])


def gpt(name: str, layers: int, hidden: int, heads: int, sequence: int, vocab: int, **more: Any) -> Model:
    """A GPT as Megatron-LM publishes them: biases, tied embeddings, learned positions, dropout, no flash attention."""
    settings: dict[str, Any] = {"biases": True, "tied": True, "learned_positions": True, "flash": False, "dropout": True}  # fmt: skip
    return Model(name, layers, hidden, heads, sequence, vocab, **{**settings, **more})
