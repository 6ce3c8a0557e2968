"""A model description from a torch module, best built on the meta device: nothing is allocated, only shapes are read."""

import dataclasses

from torch import nn

from distributed.planner.errors import PlanError
from distributed.planner.models import Mlp, Model, Table


def model_from_module(module: nn.Module, name: str, sequence: int, lookups: dict[str, int] | None = None) -> Model:
    """The description of a module of embeddings, `nn.TransformerEncoderLayer`s of one shape, and linear layers.

    `sequence` is tokens a sample, `lookups` rows a sample by the qualified name of an embedding (1 where not named). Each
    linear outside a transformer layer becomes an MLP of one step. Parameters that are none of these (norms, scalars)
    count as an MLP without width. `PlanError` when transformer layers differ.
    """
    layers = [m for m in module.modules() if isinstance(m, nn.TransformerEncoderLayer)]
    inside = {id(part) for layer in layers for part in layer.modules()}
    shapes = {(x.self_attn.embed_dim, x.self_attn.num_heads, x.linear1.out_features) for x in layers}
    if len(shapes) > 1:
        raise PlanError(f"{name}: transformer layers of {len(shapes)} different shapes; describe the model in a file")
    tables, mlps = [], []
    for path, part in module.named_modules():
        if id(part) in inside:
            continue
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            tables.append(Table(path, part.num_embeddings, part.embedding_dim, (lookups or {}).get(path, 1)))
        elif isinstance(part, nn.Linear):
            mlps.append(Mlp(path, (part.in_features, part.out_features)))
    hidden, heads, ffn = next(iter(shapes), (0, 0, 0))
    # PyTorch's layer is ungated, with biases, GELU or ReLU, and two norms.
    without = Model(name, len(layers), hidden, heads, sequence, ffn=ffn, biases=bool(layers), final_norm=False,
                    tables=tuple(tables), mlps=tuple(mlps))  # fmt: skip
    rest = sum(parameter.numel() for parameter in module.parameters()) - without.parameters
    if rest > 0:
        mlps.append(Mlp("other parameters", (0, rest)))
    return dataclasses.replace(without, mlps=tuple(mlps))
