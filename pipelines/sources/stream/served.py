"""What was served and done into the lake's tables, each row once however often it is read; what cannot be a row is kept aside."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from contracts.clock import DAY
from contracts.dataset import Dataset
from contracts.files import hash_value, write_atomically
from contracts.lake import conform
from contracts.progress import stage
from contracts.tables import ACTIONS, BLOCKS, IMPRESSIONS, POSTS, REQUESTS, TableSpec
from contracts.workspace import Workspace
from pipelines.frames import kept
from pipelines.sources.stream import redis_source
from pipelines.sources.stream.decoded import decoded
from pipelines.sources.stream.redis_source import FIRST

UPSERT_KEYS = {"requests": ("request_id",), "impressions": ("request_id", "position"), "actions": ("action_id",), "posts": ("post_id",),
        "blocks": ("user_id", "target_id", "kind", "since")}  # fmt: skip
"""Table -> what tells its rows apart in the stream, where a later entry of a post or a block takes the place of an earlier one."""


def bring_served(workspace: Workspace, spark: SparkSession, redis_url: str) -> dict[str, int]:
    """Brings what serving wrote to Redis' streams since the log's end into the lake; returns rows by table.

    The same rows, and the same end of the log, as the drain of serving, read and made by Spark. The streams are read up to ids
    that are fixed first. `put_aside` counts entries that cannot be rows; they stand in `lake/quarantine/served.jsonl`. Raises
    `BadInput` when there is no log or nothing answers.
    """
    workspace.dataset()
    ends, names = redis_source.last_ids(redis_url)
    with stage("bring served feeds and events into the lake"):
        return bring_entries(workspace, redis_source.entries_up_to(spark, redis_url, ends), ends, names)


def follow_served(workspace: Workspace, spark: SparkSession, redis_url: str) -> StreamingQuery:
    """Structured Streaming: brings entries into the lake as they come, until the query that is returned is stopped.

    Each micro-batch is landed first (`lake/landing/served/`), by its number, so that one that is run again after a kill lands
    once; then the tables are made from all that has landed, as a look may come long after its feed. Call
    `processAllAvailable()` before `stop()`. Nobody else may write the lake meanwhile.
    """
    workspace.dataset()
    # Beside each other, so that both go when another log takes the lake's place: numbers of batches begin anew with a checkpoint.
    landing, checkpoint = (workspace.lake.root / "landing" / name for name in ("served", "served-checkpoint"))
    names = redis_source.last_ids(redis_url)[1]

    def bring(batch: DataFrame, number: int) -> None:
        _land(batch, landing / f"batch-{number:09d}.parquet")
        if any(landing.glob("*.parquet")):
            landed = spark.read.parquet(str(landing))
            bring_entries(workspace, landed, _ends(landed), names)

    entries = redis_source.entries_as_they_come(spark, redis_url)
    return entries.writeStream.foreachBatch(bring).option("checkpointLocation", str(checkpoint)).start()


def bring_entries(
    workspace: Workspace, entries: DataFrame, ends: dict[str, str], names: dict[str, str]
) -> dict[str, int]:
    """Rows of these entries (`entries.ENTRY_SCHEMA`) into the lake; `ends`: stream -> id of its last entry among them.

    `names`: stream -> its name among all stores, by which the dataset remembers how far it was read.
    """
    dataset = workspace.dataset()
    log_id = _log_identity(dataset)
    with kept(decoded(entries)) as rows:
        # An entry that nobody can read may be anybody's: it is put aside, too.
        ours = rows.where((F.col("log") == log_id) | (F.col("reason").isNotNull() & F.col("log").isNull()))
        sound = ours.where(F.col("reason").isNull())
        # All tables are made before the first is written.
        made = [(spec, conform(frame.toArrow(), spec)) for spec, frame in _tables(sound)]
        aside = (
            ours.where(F.col("reason").isNotNull())
            .select("stream", "entry_id", "reason", "content")
            .toArrow()
            .to_pylist()
        )
        last = sound.groupBy("stream").agg(
            F.max(F.struct("milliseconds", "number")).alias("last"), F.max("at").alias("at")
        ).collect()  # fmt: skip
    _put_aside(workspace, aside)
    for spec, table in made:
        workspace.lake.upsert(spec, table, UPSERT_KEYS[spec.name])
    reached = {row["stream"]: (row["last"]["milliseconds"], row["last"]["number"]) for row in last}
    before = {stream: dataset.drained_to.get(name, FIRST) for stream, name in names.items()}
    is_new = any(place > redis_source.place_of(before[stream]) for stream, place in reached.items())
    drained_to = dataset.drained_to | {names[stream]: entry_id for stream, entry_id in ends.items()}
    if drained_to != dataset.drained_to:
        end = max(dataset.end, *(row["at"] for row in last)) + 1 if is_new else dataset.end
        replace(dataset, end=end, drained_to=drained_to).save(workspace.dataset_path)
    return {spec.name: table.num_rows for spec, table in made} | {"put_aside": len(aside)}


def _tables(sound: DataFrame) -> list[tuple[TableSpec, DataFrame]]:
    """Per table its rows. Of what is said of one post, or of one block, the last entry counts."""
    looks = sound.where(F.col("look").isNotNull()).select("look.*")
    looks = looks.groupBy("request_id", "post_id").agg(
        F.min("looked_at").alias("looked_at"), F.max("looked_ms").alias("looked_ms")
    )
    shown = (
        sound.select(F.explode("impressions").alias("one"))
        .select("one.*")
        .join(looks, ["request_id", "post_id"], "left")
    )
    # A row stays in the day it was served in, whenever it is read again.
    day_ends = F.col("shown_at") - F.col("shown_at") % DAY + DAY - 1
    looked_at = F.least(F.coalesce("looked_at", "shown_at"), day_ends)
    shown = shown.withColumns(
        {"shown_at": looked_at, "known_at": looked_at, "viewed_ms": F.coalesce("looked_ms", "viewed_ms")}
    )
    requests = sound.where(F.col("request").isNotNull()).select("request.*")
    actions = sound.where(F.col("action").isNotNull()).select("action.*")
    posts = _last_of(
        sound.where(F.col("post").isNotNull()).select("of_post", "milliseconds", "number", "post"), ["of_post"]
    )
    blocks = sound.select("milliseconds", "number", F.explode("blocks").alias("block"))
    blocks = _last_of(blocks, [f"block.{name}" for name in UPSERT_KEYS["blocks"]])
    return [
        (REQUESTS, requests), (IMPRESSIONS, shown.select(*IMPRESSIONS.schema.names)), (ACTIONS, actions),
        (POSTS, posts.select("post.*")), (BLOCKS, blocks.select("block.*")),
    ]  # fmt: skip


def _last_of(rows: DataFrame, key: list[str]) -> DataFrame:
    latest_first = Window.partitionBy(*key).orderBy(F.desc("milliseconds"), F.desc("number"))
    return rows.withColumn("_rank", F.row_number().over(latest_first)).where("_rank = 1")


def _land(batch: DataFrame, path: Path) -> None:
    table = batch.toArrow()
    if table.num_rows and not path.is_file():
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        write_atomically(path, sink.getvalue())


def _ends(entries: DataFrame) -> dict[str, str]:
    milliseconds = F.substring_index("entry_id", "-", 1).cast("bigint")
    place = F.struct(milliseconds, F.substring_index("entry_id", "-", -1).cast("bigint"))
    last = entries.groupBy("stream").agg(F.max_by("entry_id", place).alias("entry_id")).collect()
    return {row["stream"]: row["entry_id"] for row in last}


def _log_identity(dataset: Dataset) -> str:
    """Which log live entries go on from, as serving names it: the same for a log that only grew longer."""
    return hash_value([dataset.source, dataset.start, dataset.settings])[:16]


def _put_aside(workspace: Workspace, entries: list[dict[str, Any]]) -> None:
    """Adds the entries to `lake/quarantine/served.jsonl`, each once however often it is found."""
    if not entries:
        return
    path = workspace.root / "lake" / "quarantine" / "served.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    known = {(one["stream"], one["entry_id"]): one for one in map(json.loads, lines)}
    known |= {(one["stream"], one["entry_id"]): one for one in entries}
    content = "".join(f"{json.dumps(one, sort_keys=True)}\n" for _, one in sorted(known.items()))
    write_atomically(path, content.encode())
