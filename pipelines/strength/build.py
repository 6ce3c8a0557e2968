"""Learned strengths as of set moments: rows by Spark, one model a moment, judged where the week after it is known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.clock import to_datetime
from contracts.features import FEATURE_VERSION
from contracts.lake import content_hashes
from contracts.progress import say, stage
from contracts.strength import TIE_STRENGTH
from contracts.tables import ACTIONS, FRIENDSHIPS, IMPRESSIONS, POSTS, USERS
from contracts.workspace import Workspace
from pipelines.events import event_frame
from pipelines.frames import drawn, kept
from pipelines.spark import machine_faults
from pipelines.strength.judge import judge
from pipelines.strength.learn import PairRows, fit_plain, fit_trees, plain_chances, too_few
from pipelines.strength.rows import friend_rows
from pipelines.strength.settings import StrengthSettings
from pipelines.strength.weeks import judged_moments, training_moments

KIND = "tie_strength"
"""The artifact's kind: one LightGBM model per moment (UTC us), and the figures of the judged weeks."""


def build_strength(workspace: Workspace, spark: SparkSession, moments: Sequence[int] | None = None,
                   settings: StrengthSettings | None = None) -> dict:  # fmt: skip
    """Writes the table `tie_strength` as of `moments` (UTC us) and the judged moments, and the artifact; reports figures.

    Default moments: those of the states, where the validation window starts and the log's end. A moment is learned from
    the closed weeks before it alone. One without such a week, or with too few contacts in them, is left out with a
    sentence. `BadInput` when there is no log or the disk refuses.
    """
    settings = settings or StrengthSettings()
    dataset, lake = workspace.dataset(), workspace.lake
    judged = judged_moments(dataset)
    moments = (dataset.split().validation[0], dataset.end) if moments is None else moments
    learned_from = {
        moment: training_moments(moment, dataset.start, settings.weeks) for moment in {*moments, *judged.values()}
    }
    left_out = {
        moment: "no week of the log before it is closed and has a week of log before itself"
        for moment, weeks in learned_from.items()
        if not weeks
    }
    used = {moment: weeks for moment, weeks in sorted(learned_from.items()) if weeks}
    parents = content_hashes(lake, (USERS, FRIENDSHIPS, POSTS, IMPRESSIONS, ACTIONS))
    made: dict[int, Strengths] = {}
    with machine_faults(), stage("tie strength"):
        if used:
            at = sorted({*used, *(week for weeks in used.values() for week in weeks)})
            with (
                kept(event_frame(spark, lake)) as events,
                friend_rows(spark, lake, events, dataset.start, at) as rows,
            ):
                counts = {row["as_of"]: row["count"] for row in rows.groupBy("as_of").count().collect()}
                for moment, weeks in used.items():
                    learn = _learning_rows(rows, counts, weeks, settings)
                    if why := too_few(learn, moment, settings):
                        left_out[moment] = why + _drawn(counts, weeks, settings)
                    else:
                        made[moment] = _strengths(rows, counts.get(moment, 0), learn, moment, settings)
        for moment, why in sorted(left_out.items()):
            say(f"  no tie strength as of {to_datetime(moment)}: {why}")
        report = _report(made, judged, left_out, dataset.end)
        if made:
            with workspace.artifacts.create(KIND, parents=parents, settings=settings.model_dump(),
                                            feature_version=FEATURE_VERSION) as artifact:  # fmt: skip
                for moment, one in made.items():
                    (artifact.path / f"as_of_{moment}.txt").write_text(one.model.model_to_string())
                artifact.metrics = report
            report["version"] = artifact.version
            parents[KIND] = artifact.version
        tables = [_table(moment, one) for moment, one in made.items()]
        written = workspace.features.write(
            TIE_STRENGTH, pa.concat_tables([TIE_STRENGTH.schema.empty_table(), *tables]), parents=parents
        )
    return report | {"rows": written.rows}


@dataclass(frozen=True)
class Strengths:
    """A moment's model and what it says of the friendships (N,) active then, with what it is judged by."""

    model: Any
    user_id_N: np.ndarray
    friend_id_N: np.ndarray
    chance_N: np.ndarray
    plain_N: np.ndarray
    contact_known_at_N: np.ndarray
    friendship_days_N: np.ndarray
    quiet_days_N: np.ndarray


def _learning_rows(
    rows: DataFrame, counts: dict[int, int], weeks: Iterable[int], settings: StrengthSettings
) -> PairRows:
    """The rows of `weeks`; of too many, a share chosen by a hash of pair and moment."""
    wanted = rows.where(F.col("as_of").isin(*weeks))
    count = sum(counts.get(week, 0) for week in weeks)
    if count > settings.most_rows:
        wanted = wanted.where(drawn(settings.most_rows / count, ["as_of", "user_id", "friend_id"], settings.seed))
        say(f"  learning from {settings.most_rows / count:.1%} of {count:,} friendships by week")
    return PairRows.of(wanted.toArrow())


def _drawn(counts: dict[int, int], weeks: Iterable[int], settings: StrengthSettings) -> str:
    count = sum(counts.get(week, 0) for week in weeks)
    if count <= settings.most_rows:
        return ""
    return f"; FEEDLOOP_STRENGTH_MOST_ROWS={settings.most_rows} drew them from {count}"


def _strengths(rows: DataFrame, count: int, learn: PairRows, moment: int, settings: StrengthSettings) -> Strengths:
    model, plain = fit_trees(learn, moment, settings), fit_plain(learn, moment)
    parts = max(1, -(-count // settings.rows_at_once))
    found: list[tuple[np.ndarray, ...]] = []
    for part in range(parts):
        some = PairRows.of(rows.where((F.col("as_of") == moment) & _in_part(part, parts)).toArrow())
        found.append((
            some.user_id_N, some.friend_id_N, model.predict(some.inputs_NF, num_threads=settings.threads) if len(some) else np.zeros(0),
            plain_chances(plain, some) if len(some) else np.zeros(0), some.contact_known_at_N, some.input("friendship_days"),
            some.input("tie_days_since_contact"),
        ))  # fmt: skip
    return Strengths(model, *(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _in_part(part: int, parts: int) -> Column:
    return F.pmod(F.xxhash64("user_id"), F.lit(parts)) == part


def _table(moment: int, one: Strengths) -> pa.Table:
    return pa.table(
        {"as_of": np.full(len(one.user_id_N), moment), "user_id": one.user_id_N, "friend_id": one.friend_id_N,
         "probability": one.chance_N},
        schema=TIE_STRENGTH.schema,
    )  # fmt: skip


def _report(made: dict[int, Strengths], judged: dict[str, int], left_out: dict[int, str], end: int) -> dict:
    """Figures by window: what the model said at its moment against what the log's `end` knows of the week after it."""
    weeks = {}
    for window, moment in judged.items():
        if moment in made:
            one = made[moment]
            contacted_N = one.contact_known_at_N < end
            weeks[window] = {"week_from": str(to_datetime(moment))} | judge(
                contacted_N, one.chance_N, one.plain_N, one.friendship_days_N, one.quiet_days_N
            )
    return {
        "moments": [str(to_datetime(moment)) for moment in sorted(made)], "judged": weeks,
        "left_out": {str(to_datetime(moment)): why for moment, why in sorted(left_out.items())},
    }  # fmt: skip
