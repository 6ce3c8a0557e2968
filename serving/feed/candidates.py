"""What flows through the feed pipeline: a query, what is known of its viewer, candidates as columns, and the feed.

Shapes: N candidates, K shown posts, T tasks, F model inputs, R records, P recall paths.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from contracts.features import INPUT_NAMES
from contracts.tasks import TASK_NAMES
from serving.store.packing import Profile
from serving.store.protocol import Store

PATHS = ("social", "collaborative", "popular", "vector", "pool")
"""The columns of `brought_NP`."""


@dataclass(frozen=True)
class Query:
    """Who asks for how many posts, and when (UTC us). `pool_N`: post ids to choose from, instead of the recall paths."""

    user_id: int
    now: int
    size: int = 8
    request_id: int = 0
    pool_N: np.ndarray | None = None


@dataclass
class Viewer:
    """What the query hydrators found. `blocks_RW` None: the look-up failed, and nothing may be shown.

    `served`: the viewer's record of what this service showed, as it was read.
    """

    profile: Profile | None = None
    friends_RW: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    friends_of_RW: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    blocks_RW: np.ndarray | None = None
    seen_M: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    hidden_M: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    served: bytes = b""


@dataclass
class Run:
    """One feed in the making: the query, the store it reads, the viewer, what fell back, how long each stage took."""

    query: Query
    store: Store
    viewer: Viewer = field(default_factory=Viewer)
    degraded: list[str] = field(default_factory=list)
    took_ms: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)


class Candidates:
    """Columns of equal length N by name; a stage adds columns or takes rows, and never changes an array in place."""

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self.columns = dict(columns)
        assert len({len(column) for column in self.columns.values()}) <= 1, "columns of different lengths"

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def adding(self, **columns: np.ndarray) -> "Candidates":
        """These candidates with more columns (or other values for some)."""
        return Candidates({**self.columns, **columns})

    def take(self, rows: np.ndarray) -> "Candidates":
        """The rows of an index (K,) or a mask (N,), in that order."""
        return Candidates({name: column[rows] for name, column in self.columns.items()})


@dataclass(frozen=True)
class Prepared:
    """Candidates with features, ready for any policy's scorers."""

    run: Run
    candidates: Candidates


@dataclass(frozen=True)
class Feed:
    """What is shown, best place first, with what the log needs. `shown` holds the candidates' columns for the K posts;
    `considered_N` the ids of all posts that the policy could choose from."""

    query: Query
    viewer: Viewer
    policy: str
    shown: Candidates
    degraded: tuple[str, ...]
    took_ms: Mapping[str, float]
    considered_N: np.ndarray

    def __len__(self) -> int:
        return len(self.shown)

    @property
    def post_id_K(self) -> np.ndarray:
        """Posts (K,) int64 by position."""
        return self.shown["post_id"]

    @property
    def score_K(self) -> np.ndarray:
        """Scores (K,) of the last scorer."""
        return self.shown["score"]

    @property
    def probability_KT(self) -> np.ndarray | None:
        """Calibrated probabilities (K, T) in the order of TASK_NAMES; None for a policy without the ranker."""
        return self.shown.columns.get("probability_NT")

    @property
    def inputs_KF(self) -> np.ndarray:
        """Model inputs (K, F) in the order of INPUT_NAMES, as of the query."""
        return self.shown["inputs_NF"]

    @property
    def propensity_K(self) -> np.ndarray:
        """Probability (K,) that the policy puts the post there: 1, as every policy here is deterministic given its query."""
        return np.ones(len(self.shown))


def feature(inputs_NF: np.ndarray, name: str) -> np.ndarray:
    """One named column (N,) of model inputs."""
    return inputs_NF[:, _COLUMN[name]]


def task(probability_NT: np.ndarray, name: str) -> np.ndarray:
    """One task's probabilities (N,)."""
    return probability_NT[:, TASK_NAMES.index(name)]


_COLUMN = {name: column for column, name in enumerate(INPUT_NAMES)}
