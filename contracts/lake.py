"""The lake: Parquet partitioned by UTC day, each table behind one manifest that is replaced atomically.

A table is `<root>/<name>/manifest.json` plus `<root>/<name>/dt=YYYY-MM-DD/<content hash>.parquet`, one file or several
of a day. Readers follow the manifest alone, so they never see half a write; a writer killed at any moment leaves the
old manifest in force. `manifest.previous.json` keeps the versions before it, so that who began to read one can finish;
files that no kept version names are swept by the next write. The same rows give the same bytes.
"""

import contextlib
import functools
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pydantic import AfterValidator, Field

from contracts.clock import DAY, day_of, days_of
from contracts.errors import BadInput
from contracts.files import (
    canonical_json,
    hash_bytes,
    hash_file,
    hash_value,
    read_json,
    read_record,
    record_of,
    write_atomically,
    write_together,
)
from contracts.tables import TableSpec

MANIFEST, PREVIOUS = "manifest.json", "manifest.previous.json"


def _day_told(day: dict) -> dict:
    files = day.get("files", [day])
    if not isinstance(files, list) or not all(_tells(one, file=str, rows=int, hash=str) for one in files):
        raise ValueError("it should tell the file, rows and hash of each of its files")
    if not _tells(day, rows=int, hash=str):
        raise ValueError("it should tell its rows and hash")
    return day


def _tells(entry: object, **kinds: type) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())


_DayName = Annotated[str, Field(pattern=r"^-?\d{4,}-\d\d-\d\d$")]


@dataclass(frozen=True)
class TableManifest:
    """What a table holds: rows, schema and content hashes, the hashes of what it was made from, files per day."""

    name: str
    rows: int
    schema_hash: str
    content_hash: str
    parents: dict[str, str]
    days: dict[_DayName, Annotated[dict, AfterValidator(_day_told)]]

    def files(self) -> list[dict]:
        """`file`, `rows` and `hash` of every file, by day and, within one, in the table's order."""
        return [one for day in self.days.values() for one in files_of(day)]


def files_of(day: Mapping) -> list[dict]:
    """The files of one day of a manifest, in the table's order. A day in one file is told without a list."""
    return list(day.get("files", [day]))


def _day(files: list[dict]) -> dict:
    if len(files) == 1:
        return files[0]
    return {
        "files": files,
        "rows": sum(one["rows"] for one in files),
        "hash": hash_value([one["hash"] for one in files]),
    }


def _schema_hash(schema: pa.Schema) -> str:
    return hash_value([[field.name, str(field.type), field.nullable] for field in schema])


@functools.lru_cache(maxsize=100_000)
def _content(path: Path, changed_ns: int, size: int) -> str:
    # One hash per state of a file: reading a table often does not hash it often.
    return hash_file(path)


def check_made_of(manifest: TableManifest, lake: "Lake", specs: Iterable[TableSpec], step: str) -> None:
    """`BadInput` when the table of `manifest` was made from other versions of `specs` than `lake` now holds.

    It names the days that came, went or changed, where the manifest's parents are those of `made_of`.
    """
    changed = changed_days(manifest, lake, specs)
    if changed:
        named = ", ".join(f"{name}{_some(days)}" for name, days in changed.items())
        raise BadInput(f"{manifest.name} was made before table {named} changed: run `feedloop {step}` again")


def changed_days(manifest: TableManifest, lake: "Lake", specs: Iterable[TableSpec]) -> dict[str, list[str]]:
    """Which of `specs` changed since the table of `manifest` was made of them, and on which days: a late row's own day.

    No days are named where the manifest does not tell them.
    """
    changed = {}
    for spec in specs:
        now = made_of(lake, [spec])
        if not now or manifest.parents.get(spec.name, now[spec.name]) == now[spec.name]:
            continue
        mark = f"{spec.name} "
        days = [
            {key: one for key, one in parents.items() if key.startswith(mark)} for parents in (manifest.parents, now)
        ]
        moved = sorted(key for key in days[0] | days[1] if days[0].get(key) != days[1].get(key)) if days[0] else []
        changed[spec.name] = [key.removeprefix(mark) for key in moved]
    return changed


def made_of(lake: "Lake", specs: Iterable[TableSpec]) -> dict[str, str]:
    """`content_hashes`, and beside each table's `<name> <day>` -> the start of that day's hash, for `changed_days`."""
    hashes = {}
    for spec in specs:
        if lake.exists(spec):
            manifest = lake.manifest(spec)
            hashes[spec.name] = manifest.content_hash
            hashes |= {f"{spec.name} {day}": entry["hash"][:16] for day, entry in manifest.days.items()}
    return hashes


def _some(days: list[str]) -> str:
    if not days:
        return ""
    more = f" and {len(days) - 3} more days" if len(days) > 3 else ""
    return f" ({', '.join(days[:3])}{more})"


def conform(table: pa.Table, spec: TableSpec) -> pa.Table:
    """`table` with exactly the columns, types and nullability of `spec`; `BadInput` names what does not fit."""
    missing = [field.name for field in spec.schema if field.name not in table.column_names]
    if missing:
        raise BadInput(f"table {spec.name} lacks column {', '.join(missing)}")
    columns = []
    for field in spec.schema:
        column = table[field.name]
        if not field.nullable and column.null_count:
            raise BadInput(f"table {spec.name}: column {field.name} has {column.null_count} empty values")
        try:
            columns.append(column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadInput(
                f"table {spec.name}: column {field.name} is {column.type}, not {field.type}: {error}"
            ) from None
    return pa.Table.from_arrays(columns, schema=spec.schema)


def in_order(table: pa.Table, spec: TableSpec) -> pa.Table:
    """`conform`ed rows in the spec's order."""
    return conform(table, spec).sort_by([(name, "ascending") for name in spec.order])


class Lake:
    """Tables under one folder; of each, `keep` versions before the one in force stay readable."""

    def __init__(self, root: Path, keep: int = 1):
        self.root, self.keep = Path(root), keep

    def exists(self, spec: TableSpec) -> bool:
        """Whether the table was ever written."""
        return (self.root / spec.name / MANIFEST).is_file()

    def manifest(self, spec: TableSpec) -> TableManifest:
        """The table's manifest; `BadInput` when the table was never written."""
        path = self.root / spec.name / MANIFEST
        if not path.is_file():
            raise BadInput(f"table {spec.name} is not in {self.root}: run the step that writes it first")
        return read_record(path, TableManifest)

    def write(self, spec: TableSpec, table: pa.Table, *, parents: dict[str, str] | None = None,
              keep_other_days: bool = False) -> TableManifest:  # fmt: skip
        """Replaces the table by `table`, or, with `keep_other_days`, only the days that `table` has rows of.

        Rows are put in the spec's order, so a re-run with the same rows writes the same bytes.
        """
        table = in_order(table, spec)
        day_N = days_of(table[spec.day_column].to_numpy())
        days = dict(self.manifest(spec).days) if keep_other_days and self.exists(spec) else {}
        for day in np.unique(day_N):
            days[str(day)] = self._write_file(spec, day, table.filter(pa.array(day_N == day)))
        return self._replace_manifest(spec, days, parents or {})

    def write_file(self, spec: TableSpec, table: pa.Table) -> dict:
        """Writes rows of one UTC day, one or more, as one file and returns its entry in a manifest.

        Nobody reads it before `put_in_force` names it: several processes may each write some files of a table.
        """
        table = in_order(table, spec)
        (day,) = np.unique(days_of(table[spec.day_column].to_numpy()))
        return self._write_file(spec, day, table)

    def _write_file(self, spec: TableSpec, day: np.datetime64, rows: pa.Table) -> dict:
        sink = io.BytesIO()
        pq.write_table(rows.combine_chunks(), sink, compression="zstd", write_statistics=True)
        content = sink.getvalue()
        digest = hash_bytes(content)
        path = self.root / spec.name / f"dt={day}" / f"{digest[:32]}.parquet"
        if not path.is_file() or hash_file(path) != digest:
            write_atomically(path, content)
        return {"file": f"dt={day}/{path.name}", "rows": rows.num_rows, "hash": digest}

    def put_in_force(
        self, spec: TableSpec, files: Iterable[dict], parents: dict[str, str] | None = None
    ) -> TableManifest:
        """Replaces the table by `files` of `write_file`, which are given in the table's order.

        `BadInput` names the first that is not there.
        """
        days: dict[str, list[dict]] = {}
        for one in files:
            path = self.root / spec.name / one["file"]
            if not path.is_file():
                raise BadInput(f"table {spec.name} stays as it was: {path}, a file of its next version, is gone")
            days.setdefault(one["file"].split("/")[0].removeprefix("dt="), []).append(one)
        return self._replace_manifest(spec, {day: _day(some) for day, some in days.items()}, parents or {})

    def drop_days(self, spec: TableSpec, days: Iterable[str]) -> TableManifest:
        """The table without these days (`YYYY-MM-DD`); their files are swept in time, so copy what is still wanted."""
        manifest, gone = self.manifest(spec), set(days)
        return self._replace_manifest(
            spec, {day: entry for day, entry in manifest.days.items() if day not in gone}, manifest.parents
        )

    def _replace_manifest(self, spec: TableSpec, days: dict[str, dict], parents: dict[str, str]) -> TableManifest:
        """Puts these days in force, in one step, and sweeps the files that no kept version names."""
        days = dict(sorted(days.items()))
        schema_hash = _schema_hash(spec.schema)
        manifest = TableManifest(
            name=spec.name, rows=sum(day["rows"] for day in days.values()), schema_hash=schema_hash,
            content_hash=hash_value([schema_hash, {day: entry["hash"] for day, entry in days.items()}]),
            parents=dict(sorted(parents.items())), days=days,
        )  # fmt: skip
        folder = self.root / spec.name
        # A version that comes again, as when a step is run twice, takes no place among the earlier ones.
        earlier = [one for one in self._versions(spec) if one.content_hash != manifest.content_hash][: self.keep]
        contents = {folder / MANIFEST: canonical_json(manifest.__dict__)}
        if earlier or (folder / PREVIOUS).exists():
            contents = {folder / PREVIOUS: canonical_json([one.__dict__ for one in earlier])} | contents
        write_together(contents)
        self.sweep(spec)
        return manifest

    def _versions(self, spec: TableSpec) -> list[TableManifest]:
        """The version in force and those kept before it, newest first; what is damaged is none."""
        found = []
        with contextlib.suppress(BadInput):
            found.append(self.manifest(spec))
        return found + self._earlier(spec)

    def _earlier(self, spec: TableSpec) -> list[TableManifest]:
        path = self.root / spec.name / PREVIOUS
        with contextlib.suppress(BadInput, TypeError):
            return [record_of(one, path, TableManifest) for one in read_json(path)]
        return []

    def upsert(self, spec: TableSpec, table: pa.Table, key: Sequence[str]) -> TableManifest:
        """Adds the rows of `table`, each in its own day, in place of rows of that day with the same `key` columns.

        Doing it twice is doing it once. A row that changes its day column is a new row: leave that column as it is.
        """
        table = conform(table, spec)
        if not table.num_rows:
            return self.manifest(spec) if self.exists(spec) else self.write(spec, table)
        if self.exists(spec):
            at_N = table[spec.day_column].to_numpy()
            touched = np.unique(days_of(at_N))
            start, end = int(at_N.min()) // DAY * DAY, int(at_N.max()) // DAY * DAY + DAY
            kept = self.read(spec, start=start, end=end)
            kept = kept.filter(pa.array(np.isin(days_of(kept[spec.day_column].to_numpy()), touched)))
            new_keys = set(zip(*(table[name].to_pylist() for name in key)))
            old_keys = zip(*(kept[name].to_pylist() for name in key))
            table = pa.concat_tables([kept.filter(pa.array([k not in new_keys for k in old_keys], pa.bool_())), table])
        parents = self.manifest(spec).parents if self.exists(spec) else None
        return self.write(spec, table, parents=parents, keep_other_days=True)

    def sweep(self, spec: TableSpec) -> None:
        """Removes what no kept version names: files that a writer left half done, and versions that are past.

        Nothing goes while the manifest in force cannot be read: who mends it wants its files. What is no file of the
        lake, such as a folder inside a day, stays; so does what the disk does not give up, until the next sweep.
        """
        folder = self.root / spec.name
        try:
            in_force = [self.manifest(spec)] if os.path.lexists(folder / MANIFEST) else []
        except BadInput:
            return
        kept = {one["file"] for version in (*in_force, *self._earlier(spec)) for one in version.files()}
        for path in (*folder.glob("dt=*/*"), *folder.glob(".*.tmp")):
            if f"{path.parent.name}/{path.name}" not in kept:
                with contextlib.suppress(OSError):
                    path.unlink()
        for path in folder.glob("dt=*"):
            # Only an empty folder goes.
            with contextlib.suppress(OSError):
                path.rmdir()

    def files(self, spec: TableSpec, start: int | None = None, end: int | None = None) -> list[str]:
        """The Parquet files whose day overlaps [start, end) (UTC microseconds); for readers such as Spark.

        `BadInput` names the first file that is gone or whose bytes are not those that were written.
        """
        days = self.manifest(spec).days
        first = str(day_of(start)) if start is not None else ""
        last = str(day_of(end - 1)) if end is not None else "9999-12-31"
        wanted = [one for day, entry in days.items() if first <= day <= last for one in files_of(entry)]
        for entry in wanted:
            path = self.root / spec.name / entry["file"]
            if not path.is_file():
                raise BadInput(f"table {spec.name} is damaged: {path} is gone; run the step that writes it again")
            state = path.stat()
            if _content(path, state.st_mtime_ns, state.st_size) != entry["hash"]:
                raise BadInput(
                    f"table {spec.name} is damaged: {path} was changed after it was written; run the step that writes it again"
                )
        return [str(self.root / spec.name / entry["file"]) for entry in wanted]

    def read(self, spec: TableSpec, columns: Sequence[str] | None = None, start: int | None = None,
             end: int | None = None) -> pa.Table:  # fmt: skip
        """Rows with start <= day column < end (UTC microseconds), in the spec's order within each day."""
        names = list(columns) if columns is not None else spec.schema.names
        unknown = [name for name in names if name not in spec.schema.names]
        if unknown:
            raise BadInput(f"table {spec.name} has no column {', '.join(unknown)}")
        files = self.files(spec, start, end)
        if not files:
            return spec.schema.empty_table().select(names)
        condition = None
        if start is not None:
            condition = pc.field(spec.day_column) >= start
        if end is not None:
            before = pc.field(spec.day_column) < end
            condition = before if condition is None else condition & before
        return pads.dataset(files, schema=spec.schema).to_table(columns=names, filter=condition)


def content_hashes(lake: Lake, specs: Iterable[TableSpec]) -> dict[str, str]:
    """Table name -> content hash, for a `parents` entry; tables never written are left out."""
    return {spec.name: lake.manifest(spec).content_hash for spec in specs if lake.exists(spec)}
