"""The reward regression q(x, post, position) behind the direct and doubly robust estimators, cross-fitted by viewer.

Shapes: N rows, F inputs.
"""

import numpy as np

from contracts.errors import BadInput
from contracts.hashing import splitmix64

_TREES = {
    "objective": "regression", "num_leaves": 15, "learning_rate": 0.08, "min_data_in_leaf": 100, "feature_fraction": 0.6,
    "lambda_l2": 5.0, "max_bin": 63, "verbosity": -1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip


def viewer_folds(viewer_N: np.ndarray, folds: int) -> np.ndarray:
    """The fold (N,) of each viewer id: a fixed hash of the id, so it never depends on who else is in the log."""
    return (splitmix64(viewer_N) % np.uint64(folds)).astype(np.int64)


class RewardRegression:
    """One gradient-boosted regression per fold of viewers; a row is predicted by the one that never saw its viewer."""

    def __init__(self, *, folds: int = 2, trees: int = 60, seed: int = 0, threads: int = 2):
        self.folds = folds
        self._trees = trees
        self._settings = {**_TREES, "seed": seed, "num_threads": threads}
        self._models: list = []

    def fit(
        self, inputs_NF: np.ndarray, position_N: np.ndarray, reward_N: np.ndarray, viewer_N: np.ndarray
    ) -> "RewardRegression":
        """Fits on impressions: model inputs, slate position, total reward and viewer id.

        `BadInput` when a fold leaves no rows to fit on.
        """
        import lightgbm

        fold_N = viewer_folds(viewer_N, self.folds)
        rows_NF = _with_position(inputs_NF, position_N)
        self._models = []
        for fold in range(self.folds):
            others = fold_N != fold
            if not others.any():
                viewers = len(np.unique(viewer_N))
                raise BadInput(f"{viewers} viewers are too few to fit the reward regression in {self.folds} folds")
            data = lightgbm.Dataset(rows_NF[others], reward_N[others], free_raw_data=True)
            self._models.append(lightgbm.train(self._settings, data, num_boost_round=self._trees))
        return self

    def predict(self, inputs_NF: np.ndarray, position_N: np.ndarray, viewer_N: np.ndarray) -> np.ndarray:
        """Expected reward (N,) of showing each row's post at `position_N` to `viewer_N`."""
        fold_N = viewer_folds(viewer_N, self.folds)
        rows_NF = _with_position(inputs_NF, position_N)
        predicted_N = np.zeros(len(rows_NF))
        for fold, model in enumerate(self._models):
            mine = fold_N == fold
            if mine.any():
                predicted_N[mine] = model.predict(rows_NF[mine], num_threads=self._settings["num_threads"])
        return predicted_N


def _with_position(inputs_NF: np.ndarray, position_N: np.ndarray) -> np.ndarray:
    return np.column_stack([inputs_NF.astype(np.float32), position_N.astype(np.float32)])
