"""Reads the written samples back, one day at a time: counts per window, and the rows that the data card is drawn from."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.clock import DAY
from contracts.features import FEATURE_VERSION
from contracts.lake import Lake
from contracts.samples import SAMPLES
from contracts.tasks import TASK_NAMES
from pipelines.finishing import share_of_requests
from pipelines.samples.impressions import WINDOWS

LABELS = tuple(f"label_{task}" for task in TASK_NAMES)


class Window:
    """Sums over the rows of one window."""

    def __init__(self) -> None:
        self._rows, self._viewed = 0, 0
        self._request_ids: list[np.ndarray] = []
        self._positive, self._known = dict.fromkeys(TASK_NAMES, 0), dict.fromkeys(TASK_NAMES, 0)

    def add(self, table: pa.Table) -> None:
        """Counts the rows of one day."""
        self._rows += table.num_rows
        self._viewed += pc.sum(table["viewed"]).as_py() or 0
        self._request_ids.append(pc.unique(table["request_id"]).to_numpy())
        for task, label in zip(TASK_NAMES, LABELS, strict=True):
            self._positive[task] += pc.sum(table[label]).as_py() or 0
            self._known[task] += table.num_rows - table[label].null_count

    def as_dict(self) -> dict:
        """For the report; a task that the log lacks has no rate."""
        return {
            "rows": self._rows,
            # A request shortly before midnight has rows on two days.
            "requests": len(np.unique(np.concatenate(self._request_ids))),
            "viewed_share": self._viewed / self._rows if self._rows else None,
            "positive_rate": {task: self._positive[task] / known for task, known in self._known.items() if known},
        }


def report_of(samples: Lake) -> dict:
    """Rows, requests, share of viewed rows and positive rate per task, per window."""
    windows = {window: Window() for window in WINDOWS}
    for table in _by_day(samples, ["split", "request_id", "viewed", *LABELS]):
        for name, window in windows.items():
            window.add(table.filter(pc.equal(table["split"], name)))
    return {
        "rows": samples.manifest(SAMPLES).rows,
        "splits": {name: window.as_dict() for name, window in windows.items()},
        "feature_version": FEATURE_VERSION,
    }


def drawn_rows(samples: Lake, most: int) -> pa.Table:
    """The samples, or, where there are more than `most`, the rows of so many requests as make about that."""
    rows = samples.manifest(SAMPLES).rows
    if rows <= most:
        return samples.read(SAMPLES)
    return pa.concat_tables([share_of_requests(table, most / rows) for table in _by_day(samples)])


def _by_day(samples: Lake, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    for day in samples.manifest(SAMPLES).days:
        start = int(np.datetime64(day, "us").astype(np.int64))
        yield samples.read(SAMPLES, columns, start, start + DAY)
