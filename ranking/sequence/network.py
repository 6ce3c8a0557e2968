"""The sequence ranker's network: a table of sparse embeddings, causal blocks, and the mixture over tasks on each candidate.

It knows nothing of ranks; what they exchange stands as `table` and `gather`. The blocks are those of
`distributed.models.transformer`, with a sparse mixture of experts as feed-forward where there are experts. A candidate looks
back on the viewer's actions in every block (target attention), and no action or other candidate looks at it.
Legend: B samples, L tokens, X ids a token, D width, A candidates here, T tasks.
"""

import torch
from torch import nn

from contracts.tasks import TASK_NAMES
from distributed.dropout import Dropout
from distributed.models.transformer import Block, RMSNorm, Stack, TransformerSizes
from ranking.fit import TaskData, prior_logits
from ranking.mmoe import MMoE, masked_log_loss
from ranking.sequence.tokens import Candidates
from ranking.settings import SequenceSettings
from ranking.transform import NUMERIC_NAMES


class Bags(nn.Module):
    """One table for all ids of a token, whose vectors are added up."""

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, width) * 0.1)

    def forward(self, ids_BLX: torch.Tensor) -> torch.Tensor:
        """(B, L, D)."""
        return nn.functional.embedding(ids_BLX, self.weight).sum(2)


class SequenceRanker(Stack):
    """`model(tokens, key)` is the sum over candidates and tasks of the weighted log losses, and the routers' losses.

    `sequence_shard` (index, count) says which part of the tokens `table` gives.
    """

    def __init__(self, sizes: TransformerSizes, rows: int, numeric: int, head: MMoE):
        super().__init__()
        self.sizes = sizes
        self.first_parts, self.last_parts = ("table", "candidate"), ("norm", "head")
        self.table: nn.Module = Bags(rows, sizes.width)
        self.candidate = nn.Linear(numeric, sizes.width)
        self.drop_embedding = Dropout(sizes.dropout, "embedding")
        self.blocks = nn.ModuleList(Block(sizes, number) for number in range(sizes.layers))
        self.norm: nn.Module = RMSNorm(sizes.width)
        self.gather: nn.Module = nn.Identity()
        self.head = head
        self.sequence_shard = (0, 1)

    def embed(self, tokens: Candidates, key: int) -> torch.Tensor:
        """Sparse ids of every token; a candidate's numeric inputs beside."""
        vectors_BLD = self.table(tokens.ids)
        here = tokens.of_shard(*self.sequence_shard)
        numeric_AM = here.features(vectors_BLD)[0]
        at = (here.targets >= 0).nonzero(as_tuple=True)
        vectors_BLD = vectors_BLD.index_put(at, self.candidate(numeric_AM), accumulate=True)
        return self.drop_embedding(vectors_BLD, tokens.slots, key)

    def logits(self, hidden_BLD: torch.Tensor, tokens: Candidates) -> torch.Tensor:
        """(A, T) of the candidates that are here, in the order of `tokens.rows_A`."""
        hidden_BLD = self.gather(self.norm(hidden_BLD))
        numeric_AM, slots_AC, _, _ = tokens.features(hidden_BLD)
        return self.head(torch.cat([numeric_AM, hidden_BLD[tokens.targets >= 0]], dim=1), slots_AC)

    def task_losses(self, hidden_BLD: torch.Tensor, tokens: Candidates) -> tuple[torch.Tensor, torch.Tensor]:
        """Per task the sum of weighted log losses and the sum of weights, (T,) each; without a label neither."""
        logits_AT = self.logits(hidden_BLD, tokens)
        _, _, labels_AT, weights_A = tokens.features(hidden_BLD)
        weights_T = (torch.isfinite(labels_AT) * weights_A.unsqueeze(1)).sum(dim=0)
        return masked_log_loss(logits_AT, labels_AT, weights_A), weights_T

    def loss_sum(self, hidden_BLD: torch.Tensor, tokens: Candidates) -> torch.Tensor:
        """Over the candidates that are here."""
        return self.task_losses(hidden_BLD, tokens)[0].sum()


def network_sizes(settings: SequenceSettings) -> TransformerSizes:
    """The blocks' shape. The vocabulary is 0: the table's rows need not divide over anything."""
    return TransformerSizes(
        vocabulary=0, layers=settings.layers, width=settings.width, heads=settings.heads, kv_heads=settings.heads,
        feed_forward=settings.feed_forward, dropout=settings.dropout, tied=False, causal=True,
        experts=settings.sparse_experts, top_k=min(settings.top_k, max(settings.sparse_experts, 1)),
    )  # fmt: skip


def build_network(rows: int, slots_C: list[int], train_data: TaskData, settings: SequenceSettings) -> SequenceRanker:
    """A fresh network, float64, the same for the same seed; `rows` are those of the token table."""
    torch.manual_seed(settings.seed)
    head = MMoE(
        len(NUMERIC_NAMES) + settings.width, slots_C, len(TASK_NAMES), experts=settings.experts,
        expert_width=settings.expert_width, tower_width=settings.tower_width, embedding_dim=settings.embedding_dim,
        prior_logits_T=prior_logits(train_data),
    )  # fmt: skip
    return SequenceRanker(network_sizes(settings), rows, len(NUMERIC_NAMES), head).double()
