"""From raw model inputs to what the network sees; one module for training, the logistic baseline and the served graph.

Legend: N rows, F = len(INPUT_NAMES), M numeric inputs, C = len(CATEGORY_NAMES).
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from contracts.features import CATEGORY_NAMES, INPUT_NAMES, LOG_NAMES

NUMERIC_NAMES = tuple(name for name in INPUT_NAMES if name not in CATEGORY_NAMES)
_FARTHEST = 8.0
"""Standardised inputs are held within this many standard deviations: one wild counter must not rule a score."""


class InputTransform(nn.Module):
    """log1p of LOG_NAMES, then standardised by training statistics; category codes to embedding slots.

    Slot 0 is for codes that training had too few rows of, or none.
    """

    def __init__(self, means_M: np.ndarray, scales_M: np.ndarray, vocabulary: dict[str, list[int]]):
        super().__init__()
        self.vocabulary = vocabulary
        self._numeric_columns = [INPUT_NAMES.index(name) for name in NUMERIC_NAMES]
        self._category_columns = [INPUT_NAMES.index(name) for name in CATEGORY_NAMES]
        logged_M = np.array([name in LOG_NAMES for name in NUMERIC_NAMES])
        self.register_buffer("logged_M", torch.from_numpy(logged_M))
        self.register_buffer("means_M", torch.from_numpy(means_M))
        self.register_buffer("scales_M", torch.from_numpy(scales_M))
        for name in CATEGORY_NAMES:
            codes = vocabulary[name]
            slots = torch.zeros(max(codes, default=-1) + 2, dtype=torch.int64)
            slots[torch.tensor(codes, dtype=torch.int64)] = torch.arange(1, len(codes) + 1)
            self.register_buffer(f"slots_{name}", slots)

    @classmethod
    def fit(cls, inputs_NF: np.ndarray, category_codes: int, category_rows: int) -> "InputTransform":
        """Statistics of training rows. At most `category_codes` codes of a category, the commonest first, that have at
        least `category_rows` rows get a slot of their own."""
        numeric_NM = inputs_NF[:, [INPUT_NAMES.index(name) for name in NUMERIC_NAMES]]
        for column, name in enumerate(NUMERIC_NAMES):
            if name in LOG_NAMES:
                numeric_NM[:, column] = np.log1p(np.maximum(numeric_NM[:, column], 0.0))
        spread_M = numeric_NM.std(axis=0)
        vocabulary = {}
        for name in CATEGORY_NAMES:
            codes, rows = np.unique(inputs_NF[:, INPUT_NAMES.index(name)].astype(np.int64), return_counts=True)
            codes, rows = codes[codes >= 0], rows[codes >= 0]
            commonest = np.lexsort((codes, -rows))[:category_codes]
            vocabulary[name] = sorted(codes[commonest][rows[commonest] >= category_rows].tolist())
        return cls(numeric_NM.mean(axis=0), np.where(spread_M > 1e-9, spread_M, 1.0), vocabulary)

    @property
    def slots(self) -> list[int]:
        """Embedding slots of each category, slot 0 included."""
        return [len(self.vocabulary[name]) + 1 for name in CATEGORY_NAMES]

    def forward(self, inputs_NF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(numeric (N, M), slots (N, C) int64)."""
        raw_NM = inputs_NF[:, self._numeric_columns]
        logged_NM = torch.log1p(raw_NM.clamp_min(0.0))
        numeric_NM = (torch.where(self.logged_M, logged_NM, raw_NM) - self.means_M) / self.scales_M
        slots_CN = []
        for name, column in zip(CATEGORY_NAMES, self._category_columns):
            slot_of_code = self.get_buffer(f"slots_{name}")
            nowhere = len(slot_of_code) - 1
            codes_N = inputs_NF[:, column].clamp(-1.0, float(nowhere)).round().to(torch.int64)
            slots_CN.append(slot_of_code[torch.where(codes_N < 0, nowhere, codes_N)])
        return numeric_NM.clamp(-_FARTHEST, _FARTHEST), torch.stack(slots_CN, dim=1)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what a reader needs to compute the same elsewhere."""
        return {
            "numeric": [
                {"name": name, "log1p": name in LOG_NAMES, "mean": mean, "scale": scale}
                for name, mean, scale in zip(NUMERIC_NAMES, self.means_M.tolist(), self.scales_M.tolist())
            ],
            "farthest": _FARTHEST,
            "categories": self.vocabulary,
        }


def one_hot(numeric_NM: np.ndarray, slots_NC: np.ndarray, sizes_C: list[int]) -> np.ndarray:
    """The same transformed inputs for a linear model: numeric, then one column per embedding slot."""
    parts = [np.eye(size, dtype=numeric_NM.dtype)[slots_NC[:, column]] for column, size in enumerate(sizes_C)]
    return np.concatenate([numeric_NM, *parts], axis=1)
