"""The model of a tie's strength: LightGBM on closed weeks, and the decayed contacts alone to compare it with.

Shapes: N rows (a friendship at a moment), F inputs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.strength.rows import INPUT_NAMES
from pipelines.strength.settings import StrengthSettings
from pipelines.strength.weeks import check_closed

NEVER = np.iinfo(np.int64).max
PLAIN = "tie_contacts_14d"
"""The input that the model is compared with, alone."""


@dataclass(frozen=True)
class PairRows:
    """Rows of `rows.friend_rows`, ordered by moment and pair; `contact_known_at_N` is NEVER without a contact."""

    as_of_N: np.ndarray
    user_id_N: np.ndarray
    friend_id_N: np.ndarray
    contact_known_at_N: np.ndarray
    inputs_NF: np.ndarray

    def __len__(self) -> int:
        return len(self.as_of_N)

    @classmethod
    def of(cls, table: pa.Table) -> "PairRows":
        """From Arrow, in one order whatever the order of the rows."""
        order = pc.sort_indices(table, [(name, "ascending") for name in ("as_of", "user_id", "friend_id")])
        table = table.take(order)
        inputs_NF = np.empty((table.num_rows, len(INPUT_NAMES)), np.float32)
        for column, name in enumerate(INPUT_NAMES):
            inputs_NF[:, column] = table[name].to_numpy()
        as_of_N, user_id_N, friend_id_N = (table[name].to_numpy() for name in ("as_of", "user_id", "friend_id"))
        contact_known_at_N = table["contact_known_at"].fill_null(NEVER).to_numpy()
        return cls(as_of_N, user_id_N, friend_id_N, contact_known_at_N, inputs_NF)

    def contacted(self, as_of: int) -> np.ndarray:
        """Whether a contact of the row's week was known before `as_of` (UTC us), boolean (N,)."""
        return self.contact_known_at_N < as_of

    def input(self, name: str) -> np.ndarray:
        """One input (N,)."""
        return self.inputs_NF[:, INPUT_NAMES.index(name)]


def too_few(rows: PairRows, as_of: int, settings: StrengthSettings) -> str | None:
    """Why nothing can be learned from `rows` for `as_of`, in words; None when it can."""
    contacted = int(rows.contacted(as_of).sum())
    if min(contacted, len(rows) - contacted) >= settings.fewest_contacts:
        return None
    return (
        f"{contacted} of {len(rows)} friendships were in contact in the closed weeks before it, and at least "
        f"{settings.fewest_contacts} with and without are needed"
    )


def fit_trees(rows: PairRows, as_of: int, settings: StrengthSettings) -> Any:
    """The LightGBM booster for use at `as_of` (UTC us): P(contact within the week) from `rows` of earlier moments.

    `BadInput` when the week of a row is not over at `as_of`. The same rows and settings give the same trees.
    """
    import lightgbm

    check_closed(np.unique(rows.as_of_N).tolist(), as_of)
    parameters = {
        "objective": "binary", "num_leaves": settings.leaves, "learning_rate": settings.learning_rate,
        "min_data_in_leaf": min(settings.rows_per_leaf, max(1, len(rows) // 100)), "lambda_l2": settings.l2,
        "deterministic": True, "force_row_wise": True, "num_threads": settings.threads, "seed": settings.seed,
        "verbosity": -1,
    }  # fmt: skip
    learn = lightgbm.Dataset(rows.inputs_NF, rows.contacted(as_of).astype(np.float32), feature_name=list(INPUT_NAMES))
    return lightgbm.train(parameters, learn, settings.trees)


def fit_plain(rows: PairRows, as_of: int) -> Any:
    """Platt's logistic regression of the same labels on log1p(contacts, half-life 14 days) alone."""
    from sklearn.linear_model import LogisticRegression

    check_closed(np.unique(rows.as_of_N).tolist(), as_of)
    return LogisticRegression(C=np.inf).fit(_plain(rows), rows.contacted(as_of))


def plain_chances(model: Any, rows: PairRows) -> np.ndarray:
    """P(contact within the week) (N,) by `fit_plain`."""
    return model.predict_proba(_plain(rows))[:, 1]


def _plain(rows: PairRows) -> np.ndarray:
    return np.log1p(rows.input(PLAIN).astype(np.float64))[:, None]
