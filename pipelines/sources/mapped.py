"""Any log that a mapping describes, into the lake: read, checked, numbered, completed, written with a report."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contracts.clock import DAY, HOUR, to_datetime
from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.files import hash_value, write_atomically
from contracts.progress import say, stage
from contracts.tables import TABLES
from contracts.tasks import TASKS
from contracts.workspace import Workspace
from pipelines.keys import KEYS
from pipelines.sources.batches import FileRead, found, raw_lines, read_batches
from pipelines.sources.completion import Completion, completed
from pipelines.sources.foreign_files import Rejected
from pipelines.sources.identities import Identities
from pipelines.sources.lacks import lacks_of
from pipelines.sources.mapping import Mapping
from pipelines.sources.rows import FileOrder, foreign_schema, rows_of

_WITHOUT_IDS = {
    "impressions": ("user_id", "post_id", "shown_at"), "actions": ("request_id", "user_id", "post_id", "kind", "occurred_at"),
}  # fmt: skip
"""Keys where the log has no ids of requests or of actions."""


def ingest_mapped(mapping: Mapping, path: Path, workspace: Workspace) -> dict:
    """Reads the files below `path` into the lake and reports rows read, kept and rejected, by reason.

    Rejected lines go to `lake/quarantine/<name>.jsonl` (file, line, reason, row), the map of ids to `lake/ids/<name>.parquet`.
    `BadInput`, and nothing written, when a file is missing or cannot be read, or too many of its lines are unusable.
    """
    log, path = mapping.log, Path(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    rejected = Rejected()
    with stage(f"read {log.name}"):
        reads, foreign = _read(mapping, path, rejected)
    with stage("number and complete"):
        foreign, repeated = _without_repeats(foreign, rejected)
        _check_shares(reads, rejected, log.reject_limit)
        disorder = {name: _out_of_order(foreign[name], TABLES[name].day_column) for name in ("impressions", "actions")}
        tables = _same_line_requests(foreign)
        ids = Identities(log, tables)
        whole = completed(log, {name: ids.numbered(name, table) for name, table in tables.items()}, ids)
    dataset = _dataset(mapping, whole)
    split = dataset.split()  # says now, before anything is written, when the log is too short
    with stage("write lake"):
        _write(workspace, log.name, whole, rejected, _texts(path, mapping, rejected))
        dataset.save(workspace.dataset_path)
    say(
        f"  {', '.join(f'{count:,} {name}' for name, count in dataset.counts.items() if count)}; {len(rejected.rows):,} put aside"
    )
    return {
        "source": log.name, "files": [rejected.of_file(read.name, read.lines) for read in reads], "tables": dataset.counts,
        "repeated": repeated,
        "out_of_order": disorder, "rejected_rows": len(rejected.rows), "rejected": rejected.rows[:20],
        "lacks": lacks_of(whole.tables, whole.derived),
        "derived": dataset.derived, "not_used": mapping.not_used,
        "ids": {kind: len(one) for kind, one in ids.numbers.items() if len(one)},
        "split": {name: [str(to_datetime(at)) for at in getattr(split, name)] for name in ("train", "validation", "test")},
    }  # fmt: skip


def _read(mapping: Mapping, path: Path, rejected: Rejected) -> tuple[list[FileRead], dict[str, pa.Table]]:
    reads: list[FileRead] = []
    parts = {name: [foreign_schema(name).empty_table()] for name in TABLES}
    root = path if path.is_dir() else path.parent
    for spec in mapping.files:
        for file in found(path, spec):
            read, order = FileRead(str(file.relative_to(root)), sum(one.lines for one in reads)), FileOrder()
            reads.append(read)
            for batch in read_batches(file, root, spec, rejected, read):
                for name, tables in rows_of(batch, spec, mapping.log, order, rejected).items():
                    parts[name].extend(tables)
            if not read.lines:
                raise BadInput(f"{file} has no lines")
    return reads, {name: pa.concat_tables(tables).combine_chunks() for name, tables in parts.items()}


def _without_repeats(tables: dict[str, pa.Table], rejected: Rejected) -> tuple[dict[str, pa.Table], dict[str, int]]:
    """(tables with one row for each key, rows that say the same again where they may); other repeats are rejected."""
    kept, counts = {}, {}
    named: set[tuple[str, int]] = set()
    for name, table in tables.items():
        key = KEYS[name] if not table[KEYS[name][0]].null_count else _WITHOUT_IDS.get(name, KEYS[name])
        again_N = table.select(key).to_pandas().duplicated().to_numpy()
        if again_N.any():
            may_N = table["_again"].to_numpy()
            counts[name] = int((again_N & may_N).sum())
            for row in table.filter(pa.array(again_N & ~may_N)).select(["_file", "_line"]).to_pylist():
                # The impression and the action of one line are one repetition.
                if (row["_file"], row["_line"]) not in named:
                    rejected.add(row["_file"], row["_line"], f"the same {name} row as an earlier line", "")
                named.add((row["_file"], row["_line"]))
            table = table.filter(pa.array(~again_N))
        kept[name] = table.combine_chunks()
    return kept, {name: count for name, count in counts.items() if count}


def _same_line_requests(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Actions that name no request and stand in the line of an impression are of its request."""
    shown, acted = tables["impressions"], tables["actions"]
    if not (acted["request_id"].null_count and shown.num_rows and shown["request_id"].null_count < len(shown)):
        return tables
    place = ["_file", "_line", "_piece"]
    of_line = shown.select([*place, "request_id"]).to_pandas().drop_duplicates(place)
    at = acted.select(place).to_pandas().merge(of_line, how="left", on=place)["request_id"]
    requests = pa.Array.from_pandas(at).cast(pa.string())
    filled = pc.coalesce(acted["request_id"], requests)
    return tables | {"actions": acted.set_column(acted.column_names.index("request_id"), "request_id", filled)}


def _out_of_order(table: pa.Table, column: str) -> int:
    """Rows whose moment lies before that of the row above in the same file."""
    if table.num_rows < 2:
        return 0
    same_file = pc.equal(table["_file"].slice(1), table["_file"].slice(0, len(table) - 1)).to_numpy()
    return int(((np.diff(table[column].to_numpy()) < 0) & same_file).sum())


def _check_shares(reads: list[FileRead], rejected: Rejected, limit: float) -> None:
    for read in reads:
        rejected.check_share(read.name, read.lines, limit)


def _texts(path: Path, mapping: Mapping, rejected: Rejected) -> list[dict]:
    """The rejected lines with their text, by file and line."""
    root = path if path.is_dir() else path.parent
    numbers: dict[str, set[int]] = {}
    for row in rejected.rows:
        numbers.setdefault(row["file"], set()).add(row["line"])
    texts = {file: raw_lines(root / file, lines) for file, lines in numbers.items()}
    for row in rejected.rows:
        row["row"] = texts[row["file"]].get(row["line"], "")
    return sorted(rejected.rows, key=lambda row: (row["file"], row["line"], row["reason"]))


def _dataset(mapping: Mapping, whole: Completion) -> Dataset:
    log = mapping.log
    kinds = set(pc.unique(whole.tables["actions"]["kind"]).to_pylist())
    propensity = whole.tables["impressions"]["propensity"]
    return Dataset(
        source=log.name, start=whole.start, end=whole.end, warmup_us=round(log.warmup_days * DAY),
        attribution_us=round(log.attribution_hours * HOUR), live_us=round(log.live_days * DAY),
        tasks=tuple(task.name for task in TASKS if task.kind in kinds),
        has_propensities=bool(len(propensity)) and not propensity.null_count, derived=whole.derived | mapping.derived,
        counts={name: table.num_rows for name, table in whole.tables.items()},
        settings=log.model_dump(mode="json") | {"mapping": hash_value(mapping.model_dump(mode="json"))},
    )  # fmt: skip


def _write(workspace: Workspace, name: str, whole: Completion, rejected: Rejected, lines: list[dict]) -> None:
    # The description goes first, so a load that is killed half-way leaves a lake that says it holds no log.
    workspace.dataset_path.unlink(missing_ok=True)
    for table, rows in whole.tables.items():
        workspace.lake.write(TABLES[table], rows.select(TABLES[table].schema.names))
    sink = io.BytesIO()
    pq.write_table(whole.ids.table(), sink, compression="zstd")
    write_atomically(workspace.root / "lake" / "ids" / f"{name}.parquet", sink.getvalue())
    content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(workspace.root / "lake" / "quarantine" / f"{name}.jsonl", content.encode())
