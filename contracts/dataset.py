"""What a lake's log is: where it came from, how long its windows are, what in it was derived."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from contracts.clock import EARLIEST, LATEST, to_datetime
from contracts.errors import BadInput, first_fault
from contracts.files import canonical_json, read_json, write_atomically
from contracts.splits import TimeSplit, split_log
from contracts.tasks import TASK_NAMES

_Moment = Annotated[int, Field(ge=EARLIEST, le=LATEST)]
_Duration = Annotated[int, Field(ge=0, le=LATEST - EARLIEST)]
_Count = Annotated[int, Field(ge=0)]


@with_config(ConfigDict(strict=True, extra="forbid"))
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
    start: _Moment
    end: _Moment
    warmup_us: _Duration
    attribution_us: _Duration
    live_us: _Duration
    tasks: tuple[str, ...]
    has_propensities: bool
    derived: dict[str, str] = field(default_factory=dict)
    counts: dict[str, _Count] = field(default_factory=dict)
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
        """Reads what `save` wrote; `BadInput` when there is none, or what cannot be in it is."""
        if not path.is_file():
            raise BadInput(f"{path.parent} holds no log yet: run `feedloop simulate` or `feedloop ingest` first")
        try:
            found = _SHAPE.validate_json(canonical_json(read_json(path)))
        except ValidationError as error:
            raise BadInput(f"{path} is not a dataset description: {first_fault(error)}") from None
        unknown = [name for name in found.tasks if name not in TASK_NAMES]
        if unknown:
            raise BadInput(f"{path} names task {unknown[0]!r}; there are: {', '.join(TASK_NAMES)}")
        if found.end <= found.start:
            raise BadInput(f"{path} ends at {to_datetime(found.end)}, not after its start {to_datetime(found.start)}")
        return found


_SHAPE = TypeAdapter(Dataset)
