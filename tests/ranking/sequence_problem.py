"""A small made-up problem for the sequence ranker: likes depend on the author's last action in the viewer's history."""

import numpy as np

from contracts.tasks import TASK_NAMES
from distributed import Rank, TrainResult
from ranking.fit import TaskData
from ranking.layouts import TrainingLayout
from ranking.sequence.fit import Problem, fit_sequence
from ranking.sequence.tokens import SequenceData, Vocabulary
from ranking.settings import SequenceSettings
from ranking.transform import NUMERIC_NAMES

HISTORY, CANDIDATES = 12, 4
AUTHORS, TOPICS = 9, 5
VOCABULARY = Vocabulary(tuple(range(TOPICS)), tuple(range(AUTHORS)))
SMALL = SequenceSettings(
    history=HISTORY, candidates=CANDIDATES, width=16, heads=4, feed_forward=8, expert_width=8, tower_width=4,
    embedding_dim=4, epochs=2, tries=1, batch_size=18, learning_rate=1e-2, clip_norm=0.3, patience=9,
)  # fmt: skip
"""Batches of 18 leave a last one of 3 for eight ranks and their micro-batches: some have none."""


def window(seed: int, samples: int) -> SequenceData:
    rng = np.random.default_rng(seed)
    there_SK = np.arange(HISTORY) >= rng.integers(0, HISTORY + 1, samples)[:, None]
    kinds_SK = rng.integers(1, 9, there_SK.shape)
    authors_SK, topics_SK = rng.integers(0, AUTHORS, there_SK.shape), rng.integers(0, TOPICS, there_SK.shape)
    many_S = rng.integers(1, CANDIDATES + 1, samples)
    rows_SC = np.full((samples, CANDIDATES), -1)
    rows_SC[np.arange(CANDIDATES) < many_S[:, None]] = np.arange(many_S.sum())
    sample_N = np.repeat(np.arange(samples), many_S)
    rows = len(sample_N)
    author_N, topic_N = rng.integers(0, AUTHORS, rows), rng.integers(0, TOPICS, rows)
    same_NK = there_SK[sample_N] & (authors_SK[sample_N] == author_N[:, None])
    fond_N = np.where(same_NK, np.where(kinds_SK[sample_N] <= 4, 1.5, -1.5), 0).sum(axis=1)
    numeric_NM = rng.normal(size=(rows, len(NUMERIC_NAMES)))
    logits_N = fond_N + 0.5 * numeric_NM[:, 0] - 0.5
    labels_NT = np.stack([rng.random(rows) < 1 / (1 + np.exp(-logits_N)) for _ in TASK_NAMES], axis=1).astype(float)
    labels_NT[:, -1] = np.nan
    labels_NT[::7, 1] = np.nan
    zeros_SK, zeros_N = np.zeros_like(kinds_SK), np.zeros(rows, np.int64)
    history_SKX = VOCABULARY.ids(kinds_SK, topics_SK + 1, authors_SK + 1, zeros_SK, zeros_SK + 1)
    history_SKX = np.where(
        there_SK[..., None], history_SKX, VOCABULARY.ids(*(np.zeros((), np.int64) for _ in range(5)))
    )
    candidate_NX = VOCABULARY.ids(zeros_N + 9, topic_N + 1, author_N + 1, zeros_N, zeros_N)
    slots_NC = np.stack([rng.integers(0, 3, rows), topic_N], axis=1)
    tasks = TaskData(numeric_NM, slots_NC, labels_NT, rng.uniform(0.5, 1.5, rows))
    return SequenceData(tasks, history_SKX, there_SK, rows_SC, candidate_NX)


def problem(samples: int = 57) -> Problem:
    return Problem(window(1, samples), window(2, 31), VOCABULARY.rows, [3, TOPICS])


def fit_under(rank: Rank, layouts: list[tuple[TrainingLayout, SequenceSettings]]) -> list[TrainResult]:
    """One training of the problem for each layout, all on the same ranks."""
    return [fit_sequence(rank, problem(), settings, layout)[1] for layout, settings in layouts]
