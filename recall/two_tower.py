"""The two-tower model in torch: a viewer's recent likes and a post's content meet as vectors of length 1.

In-batch softmax with the logQ correction: a post is a negative as often as it is liked, so without the correction the
model would learn to hold popularity against posts, or to copy it. Yi et al., "Sampling-bias-corrected neural modeling
for large corpus item recommendations", RecSys 2019. Shapes: B batch, M positives, N posts, U viewers, W history, D width.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contracts.onnx_file import write_onnx
from contracts.tables import POST_KINDS
from recall.settings import VectorSettings
from recall.vector import codes

_CHANNEL, _TOPIC, _KIND, _USER, _HIDDEN = 32, 16, 4, 32, 64


@dataclass(frozen=True)
class PostInputs:
    """What the post tower reads, as raw ids: (N,) channel and topic ids, kind codes, content (N, E)."""

    channel_id_N: np.ndarray
    topic_N: np.ndarray
    kind_N: np.ndarray
    content_NE: np.ndarray


class TwoTower(nn.Module):
    """Both towers share the tables of channels and topics. Code 0 is "unknown" everywhere."""

    def __init__(self, users: int, channels: int, topics: int, content_dim: int, dim: int):
        super().__init__()
        self.channel = nn.Embedding(channels + 1, _CHANNEL)
        self.topic = nn.Embedding(topics + 1, _TOPIC)
        self.kind = nn.Embedding(len(POST_KINDS), _KIND)
        self.user = nn.Embedding(users + 1, _USER)
        for table in (self.channel, self.topic, self.kind, self.user):
            nn.init.normal_(table.weight, std=0.1)
        post_width = _CHANNEL + _TOPIC + _KIND + content_dim
        self.post_mlp = nn.Sequential(nn.Linear(post_width, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, dim))
        self.post_line = nn.Linear(post_width, dim)
        self.viewer_mlp = nn.Sequential(nn.Linear(_USER + post_width, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, dim))
        self.viewer_line = nn.Linear(_USER + post_width, dim)

    def describe(self, channel: Tensor, topic: Tensor, kind: Tensor, content: Tensor) -> Tensor:
        """A post's raw description, (…, post width), of codes (…) and content (…, E)."""
        return torch.cat([self.channel(channel), self.topic(topic), self.kind(kind), content], dim=-1)

    def forward(self, channel: Tensor, topic: Tensor, kind: Tensor, content: Tensor) -> Tensor:
        """Post vectors (N, D)."""
        described = self.describe(channel, topic, kind, content)
        return F.normalize(self.post_mlp(described) + self.post_line(described), dim=-1)

    def viewers(self, user: Tensor, history: tuple[Tensor, Tensor, Tensor, Tensor], there_BW: Tensor) -> Tensor:
        """Viewer vectors (B, D) of user codes (B,) and the mean description of their history (codes (B, W))."""
        described = self.describe(*history) * there_BW.unsqueeze(-1)
        mean = described.sum(1) / there_BW.sum(1, keepdim=True).clamp(min=1.0)
        joined = torch.cat([self.user(user), mean], dim=-1)
        return F.normalize(self.viewer_mlp(joined) + self.viewer_line(joined), dim=-1)


def in_batch_loss(
    viewer_BD: Tensor, post_BD: Tensor, log_q_B: Tensor | None, temperature: float, weight_B: Tensor
) -> Tensor:
    """Sampled softmax over the batch's own posts: mean over B of weight x -log p(post | viewer).

    `log_q_B`: log probability that a post is drawn as a positive, taken off its logit; None leaves the bias in: scores then
    tend to log p(post | viewer) - log q(post) and no longer to log p(post | viewer).
    A post that is in the batch twice stays in twice: corrected, the sum over the batch is then the whole catalogue's.
    """
    logits_BB = viewer_BD @ post_BD.T / temperature
    if log_q_B is not None:
        logits_BB = logits_BB - log_q_B[None, :]
    loss_B = F.cross_entropy(logits_BB, torch.arange(len(logits_BB)), reduction="none")
    return (loss_B * weight_B).sum() / weight_B.sum()


@dataclass(frozen=True)
class TrainedTowers:
    """The trained model with its vocabularies (sorted ids; code = position + 1) and the viewers' vectors (U, D)."""

    model: TwoTower
    channel_id_H: np.ndarray
    topic_T: np.ndarray
    user_id_U: np.ndarray
    viewer_UD: np.ndarray
    losses: list[float]

    def embed(self, posts: PostInputs) -> np.ndarray:
        """Vectors (N, D) float32 of posts."""
        with torch.no_grad():
            parts = [
                self.model(
                    *(column[start : start + 8192] for column in _tensors(posts, self.channel_id_H, self.topic_T))
                )
                for start in range(0, len(posts.topic_N), 8192)
            ]
        return torch.cat(parts).numpy() if parts else np.zeros((0, self.viewer_UD.shape[1]), np.float32)

    def export_post_tower(self, path: Path) -> None:
        """Writes the post tower as ONNX: channel, topic, kind (codes), content -> vector."""
        width = self.model.post_line.in_features - _CHANNEL - _TOPIC - _KIND
        example = (*(torch.zeros(2, dtype=torch.int64) for _ in range(3)), torch.zeros(2, width))
        rows = {0: torch.export.Dim("posts")}
        write_onnx(self.model, example, path, inputs=["channel", "topic", "kind", "content"], output="vector",
                   dynamic=(rows,) * 4)  # fmt: skip


def train_towers(user_id_M: np.ndarray, post_M: np.ndarray, weight_M: np.ndarray, group_M: np.ndarray, posts: PostInputs,
                 user_id_U: np.ndarray, settings: VectorSettings, seed: int) -> TrainedTowers:  # fmt: skip
    """Trains on positives (M,) in the order of time; `post_M` are rows of `posts`, `group_M` what counts as the same post.

    The viewer's tower sees of a positive's viewer only earlier positives. `user_id_U` (sorted) are the viewers who get a
    vector. The same input and seed give the same model.
    """
    user_M, history_MW, history_UW = _histories(user_id_M, post_M, user_id_U, settings.history)
    touched = np.unique(post_M)
    channel_id_H, topic_T = np.unique(posts.channel_id_N[touched]), np.unique(posts.topic_N[touched])
    _, code_M, count_G = np.unique(group_M, return_inverse=True, return_counts=True)
    log_q_M = torch.from_numpy(np.log(count_G[code_M] / max(len(code_M), 1))).float()
    weight = torch.from_numpy(np.asarray(weight_M)).float()
    columns = _tensors(posts, channel_id_H, topic_T)
    with _one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TwoTower(len(user_id_U), len(channel_id_H), len(topic_T), posts.content_NE.shape[1], settings.dim)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
        steps = max(1, settings.epochs * -(-len(post_M) // settings.batch))
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
        losses = []
        for _ in range(settings.epochs):
            total = 0.0
            for rows in torch.randperm(len(post_M)).split(settings.batch):
                hidden_3B = torch.rand(3, len(rows)) < settings.id_dropout
                user = torch.from_numpy(user_M)[rows].masked_fill(hidden_3B[0], 0)
                liked = [column[torch.from_numpy(post_M)[rows]] for column in columns]
                liked[0], liked[1] = liked[0].masked_fill(hidden_3B[1], 0), liked[1].masked_fill(hidden_3B[2], 0)
                viewer_BD = _viewers(model, user, history_MW[rows.numpy()], columns)
                loss = in_batch_loss(viewer_BD, model(*liked), log_q_M[rows] if settings.logq else None,
                                     settings.temperature, weight[rows])  # fmt: skip
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.item() * len(rows)
            losses.append(round(total / max(len(post_M), 1), 5))
    model.eval()
    with torch.no_grad():
        known_U = torch.from_numpy(np.where(np.isin(user_id_U, user_id_M), np.arange(1, len(user_id_U) + 1), 0))
        viewer_UD = _viewers(model, known_U, history_UW, columns).numpy()
    return TrainedTowers(model, channel_id_H, topic_T, user_id_U, viewer_UD, losses)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Small steps gain nothing from a second thread and lose much where the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tensors(posts: PostInputs, channel_id_H: np.ndarray, topic_T: np.ndarray) -> list[Tensor]:
    return [
        torch.from_numpy(codes(channel_id_H, posts.channel_id_N)), torch.from_numpy(codes(topic_T, posts.topic_N)),
        torch.from_numpy(np.asarray(posts.kind_N, np.int64)), torch.from_numpy(np.asarray(posts.content_NE, np.float32)),
    ]  # fmt: skip


def _viewers(model: TwoTower, user: Tensor, history_BW: np.ndarray, columns: list[Tensor]) -> Tensor:
    rows_BW = torch.from_numpy(history_BW)
    there_BW = (rows_BW >= 0).float()
    channel, topic, kind, content = (column[rows_BW.clamp(min=0)] for column in columns)
    return model.viewers(user, (channel, topic, kind, content), there_BW)


def _histories(user_id_M: np.ndarray, post_M: np.ndarray, user_id_U: np.ndarray, width: int):
    """User codes (M,); post rows (M, W) liked before each positive; post rows (U, W) liked last. -1: none."""
    order_M = np.argsort(user_id_M, kind="stable")
    sorted_M, posts_M = user_id_M[order_M], post_M[order_M]
    begin_M = np.searchsorted(sorted_M, sorted_M)
    steps_W = np.arange(1, width + 1)

    def window(end: np.ndarray, begin: np.ndarray) -> np.ndarray:
        at = end[:, None] - steps_W[None, :]
        return np.where(at >= begin[:, None], posts_M[np.maximum(at, 0)] if len(posts_M) else -1, -1)

    history_MW = np.empty((len(post_M), width), np.int64)
    history_MW[order_M] = window(np.arange(len(post_M)), begin_M)
    begin_U, end_U = np.searchsorted(sorted_M, user_id_U), np.searchsorted(sorted_M, user_id_U, side="right")
    return codes(user_id_U, user_id_M), history_MW, window(end_U, begin_U)
