"""What replay is asked: which policies, over which days, and by which estimator; refused when the models know the answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.clock import EARLIEST, HOUR, LATEST, micros, to_datetime
from contracts.errors import BadInput
from contracts.samples import SAMPLES
from contracts.splits import TimeSplit
from contracts.tables import REQUESTS
from contracts.workspace import Workspace
from simulator.replay.estimates import NAMES

BASELINE = "chronological"
SERVED = "full"
UNTUNED = "full, untuned"
DESCRIPTIONS = {
    "chronological": "Newest post first.",
    "popularity": "Posts that most people engaged with lately.",
    "random": "Any order of the pool, equally likely; a floor to measure from.",
    "prerank": "The pre-ranker alone, best score first.",
    SERVED: "What serves: ranker, value model and reranking for variety and exploration.",
    UNTUNED: "The same with every action weighed by its worth, as before tuning.",
}
POLICIES = tuple(name for name in DESCRIPTIONS if name != UNTUNED)


@dataclass(frozen=True)
class Question:
    """`policies`: names, none for all; the baseline is always judged beside them. `start`, `end`: the window of requests
    [start, end), UTC us, None for the edge of the split's test window. `estimator`: which one decides, None for the one
    that the log allows and that needs fewest requests. `beside`: workspaces whose logs show what lasts under other policies."""

    policies: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    estimator: str | None = None
    beside: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.policies if name not in POLICIES]
        if unknown:
            raise BadInput(
                f"there is no policy {', '.join(map(repr, unknown))} to replay; there are: {', '.join(POLICIES)}"
            )
        if self.estimator is not None and self.estimator not in NAMES:
            raise BadInput(f"there is no estimator {self.estimator!r} to decide by; there are: {', '.join(NAMES)}")

    @classmethod
    def of(cls, policies: Sequence[str], start: str | None, end: str | None, estimator: str | None = None,
           beside: Sequence[Path] = ()) -> "Question":  # fmt: skip
        """From words: ISO dates or moments in UTC. `BadInput` for what is none."""
        return cls(
            tuple(dict.fromkeys(policies)), _moment(start, "--from"), _moment(end, "--to"), estimator, tuple(beside)
        )

    @property
    def other_logs(self) -> list[Workspace]:
        """The workspaces to look at beside; `BadInput` for one without a log."""
        found = [Workspace(path) for path in self.beside]
        for workspace in found:
            workspace.dataset()
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The policies to judge, the baseline first."""
        return tuple(name for name in POLICIES if name == BASELINE or not self.policies or name in self.policies)

    def window(self, workspace: Workspace, split: TimeSplit) -> TimeSplit:
        """`split` with the asked window in place of its test window.

        `BadInput` when the window is empty, or begins while the models were still learning, or ends later than the
        labels are closed.
        """
        start = split.test[0] if self.start is None else self.start
        end = split.test[1] if self.end is None else self.end
        if end <= start:
            raise BadInput(f"the test window {_said(start)} to {_said(end)} is empty: 0 requests can be replayed")
        if start < split.test[0]:
            raise BadInput(_overlap(workspace, split, start, end))
        if end > split.test[1]:
            raise BadInput(_unclosed(workspace, split, start, end))
        return replace(split, test=(start, end))


def _moment(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{option} {text!r} is no date: write it like 2024-05-28 or 2024-05-28T12:00") from None
    at = micros(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if not EARLIEST <= at <= LATEST:
        raise BadInput(f"{option} {text!r} lies outside the years 1 to 9999 of UTC")
    return at


def _said(at: int) -> str:
    return f"{to_datetime(at):%Y-%m-%d %H:%M}"


def _overlap(workspace: Workspace, split: TimeSplit, start: int, end: int) -> str:
    """Why a window that begins before the test window cannot be judged: what of it the models have seen."""
    models = " and ".join(
        f"the {kind} model {workspace.artifacts.load(kind).version}" for kind in ("prerank", "ranker")
    )
    rows = workspace.samples.read(
        SAMPLES, ["request_id", "post_id", "shown_at", "split"], start, min(end, split.test[0])
    ).combine_chunks()
    learned = rows.filter(pa.array(np.isin(rows["split"].to_pylist(), ("train", "validation"))))
    about = (
        f"the window {_said(start)} to {_said(end)} overlaps the training of {models}, which learned until "
        f"{_said(split.validation[1])}, with labels until {_said(split.test[0])}"
    )
    if learned.num_rows:
        row = learned.slice(0, 1).to_pylist()[0]
        about += (
            f": {learned.num_rows:,} impressions of their training and validation lie inside, such as request "
            f"{row['request_id']}, post {row['post_id']}, shown {_said(row['shown_at'])}"
        )
    else:
        about += ": 0 impressions that they learned from lie inside, but the last labels do"
    return f"{about}; begin at {_said(split.test[0])} or later"


def _unclosed(workspace: Workspace, split: TimeSplit, start: int, end: int) -> str:
    open_from = max(start, split.test[1])
    late = workspace.lake.read(REQUESTS, ["request_id", "requested_at"], open_from, end).sort_by("requested_at")
    example = ""
    if late.num_rows:
        row = late.slice(0, 1).to_pylist()[0]
        example = f", such as request {row['request_id']} at {_said(row['requested_at'])}"
    return (
        f"the window {_said(start)} to {_said(end)} ends after {_said(split.test[1])}, the last moment whose labels are closed "
        f"{split.window_us / HOUR:g} hours later: {late.num_rows:,} requests would lack labels{example}"
    )
