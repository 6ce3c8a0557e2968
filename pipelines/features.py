"""Feature state as of set moments: every declared family, for publishing and as the start of a replay."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from contracts.clock import day_of, to_datetime
from contracts.errors import BadInput
from contracts.features import FAMILIES, FEATURE_VERSION
from contracts.lake import content_hashes
from contracts.progress import stage
from contracts.states import STATES
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS
from contracts.workspace import Workspace
from pipelines.counters import as_of_moments
from pipelines.events import event_frame
from pipelines.frames import kept


def build_states(workspace: Workspace, spark: SparkSession, moments: Sequence[int] | None = None) -> dict:
    """Writes the state tables of all families as of `moments` (UTC microseconds) and reports rows per table.

    Default moments: where the validation window starts (a replay starts there) and the log's end (serving starts
    there). `BadInput` when there is no log, or when two moments fall on one UTC day.
    """
    dataset = workspace.dataset()
    if moments is None:
        moments = (dataset.split().validation[0], dataset.end)
    moments = sorted(set(moments))
    if not moments or len({day_of(moment) for moment in moments}) < len(moments):
        raise BadInput(f"state needs moments on different UTC days, not {[str(to_datetime(m)) for m in moments]}")
    parents = content_hashes(workspace.lake, (POSTS, IMPRESSIONS, ACTIONS)) | {"feature_version": FEATURE_VERSION}
    rows = {}
    with stage("feature state"), kept(event_frame(spark, workspace.lake)) as events:
        for name, family in FAMILIES.items():
            table = as_of_moments(events, family, moments).toArrow()
            rows[name] = workspace.features.write(STATES[name], table, parents=parents).rows
    return {
        "moments": [str(to_datetime(moment)) for moment in moments],
        "rows": rows,
        "feature_version": FEATURE_VERSION,
    }
