"""Feature state as of set moments: every declared family, for publishing and as the start of a replay.

In full, or carried on: the state as of an earlier moment, decayed, plus the events that became known since.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.clock import day_of, to_datetime
from contracts.errors import BadInput
from contracts.events import EVENT_SCHEMA
from contracts.features import FAMILIES, FEATURE_VERSION, Family
from contracts.lake import TableManifest, made_of
from contracts.progress import stage
from contracts.states import STATES
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS
from contracts.workspace import Workspace
from pipelines.counters import as_of_moments, carried_on
from pipelines.events import event_frame
from pipelines.frames import frame, kept
from pipelines.spark import machine_faults
from pipelines.writing import WritingSettings, cuts, numbered, write_frame

_BEFORE = "events known before "
"""Parents of a state table name what each of its moments has seen."""


def build_states(
    workspace: Workspace, spark: SparkSession, moments: Sequence[int] | None = None, *, carry_on: bool = False
) -> dict:
    """Writes the state tables of all families as of `moments` (UTC microseconds) and reports rows per table.

    Default moments: where the validation window starts (a replay starts there) and the log's end (serving starts
    there). With `carry_on` a moment is reached from the latest earlier one that is written, by the events known since;
    that equals a full count to rounding. Where an event known before that earlier moment has come or gone, the moment
    is counted in full. `BadInput` when there is no log, or when two moments fall on one UTC day.
    """
    dataset = workspace.dataset()
    if moments is None:
        moments = (dataset.split().validation[0], dataset.end)
    moments = sorted(set(moments))
    if not moments or len({day_of(moment) for moment in moments}) < len(moments):
        raise BadInput(f"state needs moments on different UTC days, not {[str(to_datetime(m)) for m in moments]}")
    parents = made_of(workspace.lake, (POSTS, IMPRESSIONS, ACTIONS)) | {"feature_version": FEATURE_VERSION}
    written = {name: _written(workspace, name) if carry_on else {} for name in FAMILIES}
    rows, counted = {}, {}
    with machine_faults(), stage("feature state"), kept(event_frame(spark, workspace.lake)) as events:
        seen = _seen(events, {*moments, *(moment for found in written.values() for moment in found)})
        for name, family in FAMILIES.items():
            bases = {moment for moment, digest in written[name].items() if seen[moment].digest == digest}
            state = (
                reduce(DataFrame.unionByName, [_state(workspace, spark, events, family, at, bases) for at in moments])
                if bases
                else as_of_moments(events, family, moments)
            )
            known = {f"{_BEFORE}{moment}": seen[moment].digest for moment in moments}
            most = seen[moments[-1]].events
            rows[name] = _write(workspace, events, family, state, moments, most, parents | known).rows
            counted[name] = "carried on" if bases else "in full"
    return {
        "moments": [str(to_datetime(moment)) for moment in moments],
        "rows": rows,
        "counted": counted,
        "feature_version": FEATURE_VERSION,
    }


def _written(workspace: Workspace, name: str) -> dict[int, str]:
    """The moments that a family's table holds, and what each has seen; none where the features are declared otherwise."""
    spec = STATES[name]
    if not workspace.features.exists(spec):
        return {}
    parents = workspace.features.manifest(spec).parents
    if parents.get("feature_version") != FEATURE_VERSION:
        return {}
    return {int(key.removeprefix(_BEFORE)): digest for key, digest in parents.items() if key.startswith(_BEFORE)}


@dataclass(frozen=True)
class Seen:
    """The events known before a moment: how many, and a digest of them, the same whatever their order."""

    events: int
    digest: str


def _seen(events: DataFrame, moments: Iterable[int]) -> dict[int, Seen]:
    """What is known before each moment; one pass."""
    ordered = sorted(moments)
    row = F.xxhash64(*EVENT_SCHEMA.names)
    columns = []
    for moment in ordered:
        known = F.col("known_at") < moment
        columns += [F.count_if(known), F.bit_xor(F.when(known, row))]
    found = events.agg(*columns).first()
    assert found is not None
    return {at: Seen(found[2 * i], f"{found[2 * i]} {found[2 * i + 1]}") for i, at in enumerate(ordered)}


def _state(workspace: Workspace, spark: SparkSession, events: DataFrame, family: Family, moment: int,
           bases: set[int]) -> DataFrame:  # fmt: skip
    """A family's state as of `moment`, from the latest of `bases` that is not after it, or in full."""
    spec = STATES[family.name]
    earlier = [base for base in bases if base <= moment]
    if not earlier:
        return as_of_moments(events, family, [moment])
    base = max(earlier)
    before = frame(spark, workspace.features, spec, None, base, base + 1).where(F.col("as_of") == base)
    return before if base == moment else carried_on(before, events, family, base, moment)


def _write(workspace: Workspace, events: DataFrame, family: Family, state: DataFrame, moments: Sequence[int],
           most: int, parents: dict[str, str]) -> TableManifest:  # fmt: skip
    """Writes a family's state as of `moments`, ascending; there are no more keys than `most`, the events."""
    spec, by = STATES[family.name], family.key[0]
    keys = events.where(F.col("known_at") < moments[-1]).select(*family.key)
    at = cuts(keys, by, most, WritingSettings().rows_per_file(spec))
    number = numbered(F.col("as_of"), moments[1:]) * (len(at) + 1) + numbered(F.col(by), at)
    return write_frame(workspace.features, spec, state, number, parents)
