"""What a lake's log is: where it came from, how long its windows are, what in it was derived."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from contracts.errors import BadInput
from contracts.files import canonical_json, read_json, write_atomically
from contracts.splits import TimeSplit, split_log


@dataclass(frozen=True)
class Dataset:
    """The facts of one log, written by the adapter or the simulator that made it.

    `start`, `end`: the log's half-open span in UTC microseconds. `warmup_us`: history at the start that feeds features
    but gives no samples. `attribution_us`: an action counts for an impression when it comes within this time.
    `live_us`: how long a post stays a candidate. `tasks`: which tasks have labels. `derived`: what the log did not hold
    and the rule that made it. `has_propensities`: whether off-policy estimates are possible. `drained_to`: stream of a
    serving store -> id of its last entry that is in the log, for what was served and done and came back into it.
    """

    source: str
    start: int
    end: int
    warmup_us: int
    attribution_us: int
    live_us: int
    tasks: tuple[str, ...]
    has_propensities: bool
    derived: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    drained_to: dict[str, str] = field(default_factory=dict)

    def split(self) -> TimeSplit:
        """The one time split of this log that every room uses."""
        return split_log(self.start + self.warmup_us, self.end, self.attribution_us)

    def save(self, path: Path) -> None:
        """Writes `path` atomically."""
        write_atomically(path, canonical_json(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "Dataset":
        """Reads what `save` wrote; `BadInput` when there is none."""
        if not path.is_file():
            raise BadInput(f"{path.parent} holds no log yet: run `feedloop simulate` or `feedloop ingest` first")
        record = read_json(path)
        try:
            return cls(**{**record, "tasks": tuple(record["tasks"])})
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{path} is not a dataset description: {error}") from None
