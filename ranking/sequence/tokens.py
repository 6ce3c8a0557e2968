"""Training samples of the sequence ranker: one history and the candidates of the request beside it, as tokens.

    place      0 … K-1                        K … K+C-1
    token      the viewer's actions, oldest   candidates: each sees the actions and itself, no other candidate,
               first, empty places before     and all stand at position K, right after the newest action

Legend: S samples, B samples of a batch, L = K + C tokens, X ids of a token, N rows, A tokens that are candidates here.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from contracts.features import CATEGORY_NAMES
from contracts.tables import ACTION_KINDS
from distributed.models.transformer import NO_TARGET, Tokens
from ranking.data import Samples
from ranking.fit import TaskData
from ranking.sequence.history import AGES, MOST_TIES, Histories
from ranking.transform import InputTransform

_CANDIDATE = len(ACTION_KINDS) + 1
_TOPIC = CATEGORY_NAMES.index("post_topic")


@dataclass(frozen=True)
class Vocabulary:
    """What has rows of its own in the one table of token embeddings. Slot 0 of each part is for what has none.

    A token has five ids: kind (of action, or "candidate"), topic, author, ties with the author, age.
    """

    topics: tuple[int, ...]
    authors: tuple[int, ...]

    @classmethod
    def fit(cls, transform: InputTransform, authors: np.ndarray, codes: int, rows: int) -> "Vocabulary":
        """The topics of `transform`; of training's `authors` (any order) the commonest `codes` with at least `rows`."""
        found, counts = np.unique(authors, return_counts=True)
        commonest = np.lexsort((found, -counts))[:codes]
        kept = sorted(found[commonest][counts[commonest] >= rows].tolist())
        return cls(tuple(transform.vocabulary["post_topic"]), tuple(kept))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each part."""
        return (_CANDIDATE + 1, len(self.topics) + 1, len(self.authors) + 1, MOST_TIES + 1, AGES + 1)

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return sum(self.sizes)

    def ids(self, kinds: np.ndarray, topic_slots: np.ndarray, author_slots: np.ndarray, ties: np.ndarray,
            ages: np.ndarray) -> np.ndarray:  # fmt: skip
        """Slots of equal shape to row numbers of the table, with X as a last dim."""
        offsets_X = np.cumsum((0, *self.sizes[:-1]))
        return np.stack([kinds, topic_slots, author_slots, ties, ages], axis=-1) + offsets_X


def slots_of(values: np.ndarray, known: tuple[int, ...]) -> np.ndarray:
    """1 + the place of each value in the rising `known`, 0 where it is not among them."""
    if not known:
        return np.zeros(values.shape, np.int64)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(np.asarray(known)[places] == values, places + 1, 0)


@dataclass(frozen=True)
class Candidates(Tokens):
    """`ids` are (B, L, X); `targets` is a candidate's row in `rows_of`, NO_TARGET for all other tokens."""

    rows_of: TaskData | None = None

    @property
    def weight(self) -> float:
        """The sum of the weights of the candidates that are here."""
        return float(self._data.weights_N[self.rows_A].sum())

    @property
    def rows_A(self) -> np.ndarray:
        """The candidates' rows, in token order."""
        return self.targets[self.targets != NO_TARGET].cpu().numpy()

    def features(self, like: torch.Tensor) -> list[torch.Tensor]:
        """(numeric, slots, labels, weights) of the candidates that are here, on the device and of the type of `like`."""
        return self._data.batch(self.rows_A, like.dtype, like.device)

    def of_shard(self, index: int, count: int) -> "Candidates":
        """Those of the `index`-th of `count` equal parts of the tokens; only for `features`."""
        return dataclasses.replace(self, targets=self.targets.chunk(count, dim=1)[index])

    @property
    def _data(self) -> TaskData:
        assert self.rows_of is not None
        return self.rows_of


@dataclass(frozen=True)
class SequenceData:
    """One window: `history_SKX` and `there_SK` of each sample, its candidates' rows `rows_SC` (-1: none) in `tasks`, and
    each row's `candidate_NX`."""

    tasks: TaskData
    history_SKX: np.ndarray
    there_SK: np.ndarray
    rows_SC: np.ndarray
    candidate_NX: np.ndarray

    def __len__(self) -> int:
        return len(self.rows_SC)

    @property
    def tokens(self) -> int:
        """L."""
        return self.there_SK.shape[1] + self.rows_SC.shape[1]

    def batch(self, samples_B: np.ndarray, first: int, device: torch.device) -> Candidates:
        """The tokens of `samples_B`, which stand from place `first` in the global batch."""
        rows_BC = self.rows_SC[samples_B]
        there_BL = np.concatenate([self.there_SK[samples_B], rows_BC >= 0], axis=1)
        samples, length = there_BL.shape
        history = self.there_SK.shape[1]
        place_L = np.arange(length)
        # Empty places are leaves of a document of their own: nobody sees them and they see but themselves.
        documents_BL = np.where(there_BL, np.where(place_L < history, 0, ~0), ~1)
        targets_BL = np.concatenate(
            [np.full((samples, history), NO_TARGET), np.where(rows_BC < 0, NO_TARGET, rows_BC)], axis=1
        )
        ids_BLX = np.concatenate([self.history_SKX[samples_B], self.candidate_NX[np.maximum(rows_BC, 0)]], axis=1)
        slots_BL = np.arange(first, first + samples)[:, None] * length + place_L
        made = (
            ids_BLX,
            targets_BL,
            np.tile(np.minimum(place_L, history), (samples, 1)),
            documents_BL,
            slots_BL,
        )
        ids, targets, positions, documents, slots, there = (
            torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in (*made, there_BL)
        )
        return Candidates(ids, targets, positions, documents, slots, valid_BL=there, rows_of=self.tasks)


def sequence_data(samples: Samples, tasks: TaskData, found: Histories, vocabulary: Vocabulary, candidates: int
                  ) -> SequenceData:  # fmt: skip
    """`found` are the histories of the requests of `samples` in their order; a request with more than `candidates` rows
    becomes several samples."""
    sizes_G = samples.group_sizes_G
    request_N = np.repeat(np.arange(len(sizes_G)), sizes_G)
    pieces_G = -(-sizes_G // candidates)
    place_N = np.arange(len(samples)) - (np.cumsum(sizes_G) - sizes_G)[request_N]
    sample_N = (np.cumsum(pieces_G) - pieces_G)[request_N] + place_N // candidates
    rows_SC = np.full((int(pieces_G.sum()), candidates), -1)
    rows_SC[sample_N, place_N % candidates] = np.arange(len(samples))
    request_S = np.repeat(np.arange(len(sizes_G)), pieces_G)
    history_RKX = vocabulary.ids(
        found.kinds_RK + 1, slots_of(found.topics_RK, vocabulary.topics), slots_of(found.authors_RK, vocabulary.authors),
        found.ties_RK, found.ages_RK + 1,
    )  # fmt: skip
    nothing_X = vocabulary.ids(*(np.zeros((), np.int64) for _ in range(5)))
    history_RKX = np.where(found.there_RK[..., None], history_RKX, nothing_X)
    zeros_N = np.zeros(len(samples), np.int64)
    candidate_NX = vocabulary.ids(
        zeros_N + _CANDIDATE, tasks.slots_NC[:, _TOPIC], slots_of(samples.author_ids_N, vocabulary.authors),
        found.ties_with(request_N, samples.author_ids_N), zeros_N,
    )  # fmt: skip
    return SequenceData(tasks, history_RKX[request_S], found.there_RK[request_S], rows_SC, candidate_NX)
