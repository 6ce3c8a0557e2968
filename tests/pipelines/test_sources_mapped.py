"""A team's own log through a mapping file: the three formats agree, bad lines are put aside by reason, errors name the place."""

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from contracts.clock import DAY, HOUR, SECOND, micros
from contracts.errors import BadInput
from contracts.tables import TABLES
from contracts.workspace import Workspace
from pipelines.sources.mapped import ingest_mapped
from pipelines.sources.mapping import load_mapping

MAPPING = """
[log]
name = "our-app"
attribution_hours = 12
reject_limit = 0.25

[[files]]
path = "shown.csv"
format = "csv"

[[files.rows]]
table = "impressions"
[files.rows.columns]
request_id = "request"
user_id = "who"
post_id = "what"
position = { from = "place", less = 1 }
shown_at = { from = "at", time = "%Y-%m-%d %H:%M:%S", zone = "Europe/Vienna" }
viewed_ms = { from = "looked_s", scale = 1000, default = 0 }
policy = { value = "newest first" }

[[files]]
path = "done.csv"
format = "csv"

[[files.rows]]
table = "actions"
[files.rows.columns]
request_id = "request"
user_id = "who"
post_id = "what"
kind = { from = "event", map = { tapped = "click", loved = "like" } }
occurred_at = { from = "ms", time = "ms" }

[[files]]
path = "people.csv"
format = "csv"

[[files.rows]]
table = "users"
attributes = ["plan"]
[files.rows.columns]
user_id = "id"
registered_at = { from = "joined", time = "iso" }
city = "town"
"""
SHOWN = "request,who,what,place,at,looked_s\n" + "".join(
    f"r{day}-{user},{user},p{(day + place) % 5},{place},2024-03-{day:02d} 08:00:{place:02d},{place / 2}\n"
    for day in range(1, 11)
    for user in ("ann", "bob")
    for place in (1, 2, 3)
)
START = micros(datetime(2024, 3, 1, tzinfo=UTC))
DONE = "request,who,what,event,ms\n" + "".join(
    f"r{day}-ann,ann,p{(day + 1) % 5},{'loved' if day % 2 else 'tapped'},{(START + (day - 1) * DAY + 8 * HOUR) // 1000}\n"
    for day in range(1, 11)
)
PEOPLE = "id,joined,town,plan\nann,2024-01-05T10:00:00+01:00,Graz,free\nbob,2024-02-01,,paid\n"
FILES = {"shown.csv": SHOWN, "done.csv": DONE, "people.csv": PEOPLE}


def write(folder: Path, files: dict[str, str] = FILES, mapping: str = MAPPING) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "map.toml").write_text(mapping)
    return folder


def load(folder: Path, root: Path) -> tuple[Workspace, dict]:
    workspace = Workspace(root)
    return workspace, ingest_mapped(load_mapping(folder / "map.toml"), folder, workspace)


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def rows(workspace: Workspace, table: str) -> list[dict]:
    return workspace.lake.read(TABLES[table]).to_pylist()


def foreign_of(workspace: Workspace, kind: str) -> dict[int, str]:
    ids = pq.read_table(next((workspace.root / "lake" / "ids").iterdir())).to_pylist()
    return {row["id"]: row["foreign"] for row in ids if row["kind"] == kind}


def test_names_units_zones_and_kinds_are_the_contracts_afterwards(tmp_path: Path) -> None:
    workspace, report = load(write(tmp_path / "in"), tmp_path / "ws")
    users, posts = foreign_of(workspace, "user"), foreign_of(workspace, "post")
    shown = rows(workspace, "impressions")[0]
    # 8 o'clock in Vienna is 7 in UTC in winter; places count from 1 there and from 0 here.
    assert (users[shown["user_id"]], posts[shown["post_id"]]) == ("ann", "p2")
    assert (shown["shown_at"], shown["position"], shown["viewed_ms"]) == (START + 7 * HOUR + SECOND, 0, 500)
    acted = rows(workspace, "actions")
    assert [row["kind"] for row in acted] == ["like", "click"] * 5
    assert acted[0]["request_id"] == shown["request_id"] and acted[0]["occurred_at"] == START + 8 * HOUR
    ann, bob = (row for row in rows(workspace, "users") if users[row["user_id"]] in ("ann", "bob"))
    assert ann["registered_at"] == micros(datetime(2024, 1, 5, 9, tzinfo=UTC)) and ann["city"] == "Graz"
    assert dict(bob["attributes"]) == {"plan": "paid"} and bob["city"] is None
    assert report["split"]["test"] and workspace.dataset().tasks == ("click", "like")


def test_what_the_log_does_not_hold_is_derived_from_the_past_alone_and_the_report_says_what_follows(
    tmp_path: Path,
) -> None:
    workspace, report = load(write(tmp_path / "in"), tmp_path / "ws")
    first_shown: dict[int, int] = {}
    for row in rows(workspace, "impressions"):
        first_shown.setdefault(row["post_id"], row["shown_at"])
    posts = rows(workspace, "posts")
    assert {row["post_id"]: row["known_at"] for row in posts} == {post: at - SECOND for post, at in first_shown.items()}
    publisher = {foreign: number for number, foreign in foreign_of(workspace, "user").items()}["(publisher)"]
    assert {row["author_id"] for row in posts} == {publisher}
    requests = rows(workspace, "requests")
    assert len(requests) == 20 and all(row["slate_size"] == len(row["candidates"]) == 3 for row in requests)
    assert "posts.created_at" in report["derived"]
    assert set(report["lacks"]) >= {"friendships", "propensities", "authors", "candidates"}
    assert "positions" not in report["lacks"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A lake that holds the log as it should be; a load that fails leaves it so."""
    root = tmp_path_factory.mktemp("loaded")
    return load(write(root / "in"), root / "ws")[0]


def as_json_lines(content: str) -> str:
    header, *lines = content.splitlines()
    records = [dict(zip(header.split(","), line.split(","))) for line in lines]
    return "".join(json.dumps({"data": {name: value or None for name, value in one.items()}}) + "\n" for one in records)


def test_csv_json_lines_parquet_and_compressed_files_of_one_log_give_the_same_tables(
    loaded: Workspace, tmp_path: Path
) -> None:
    lines = write(
        tmp_path / "jsonl", {name.replace("csv", "jsonl"): as_json_lines(text) for name, text in FILES.items()}
    )
    nested = MAPPING.replace(".csv", ".jsonl").replace('"csv"', '"jsonl"')
    for name in ("request", "who", "what", "place", "at", "looked_s", "event", "id", "joined", "town"):
        nested = nested.replace(f'= "{name}"', f'= "data.{name}"')
    nested = nested.replace('from = "ms"', 'from = "data.ms"').replace('["plan"]', '["data.plan"]')
    (lines / "map.toml").write_text(nested)
    columns = write(tmp_path / "parquet", mapping=MAPPING.replace(".csv", ".parquet").replace('"csv"', '"parquet"'))
    for name in FILES:
        table = pacsv.read_csv(columns / name)
        pq.write_table(table, columns / name.replace("csv", "parquet"))
    packed = write(tmp_path / "packed", mapping=MAPPING.replace(".csv", ".csv.gz"))
    for name, content in FILES.items():
        (packed / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    for folder in (lines, columns, packed):
        workspace, report = load(folder, tmp_path / f"ws-{folder.name}")
        assert report["rejected_rows"] == 0
        for name, spec in TABLES.items():
            if name == "users":  # its attribute bears the name that the file has for it
                continue
            assert workspace.lake.read(spec).equals(loaded.lake.read(spec)), (folder.name, name)


def test_loading_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    workspace, _ = load(write(tmp_path / "in"), tmp_path / "ws")
    before = everything(workspace.root)
    load(tmp_path / "in", tmp_path / "ws")
    assert everything(workspace.root) == before


def _insert(files: dict[str, str], name: str, line: int, text: str) -> dict[str, str]:
    lines = files[name].splitlines(keepends=True)
    lines.insert(line - 1, text + "\n")
    return files | {name: "".join(lines)}


BAD_LINES = [
    ("done.csv", 4, "r1-ann,ann,p2,stared,1709280000000", "kind (event) is none of the values of the map"),
    ("done.csv", 7, "r1-ann,ann,p2,tapped,1709280000", "occurred_at (ms) lies outside 1990-01-01 to 2100-01-01"),
    ("shown.csv", 2, "r1-ann,ann,p0", "3 columns instead of 6"),
    ("shown.csv", 5, "", "an empty line"),
    ("shown.csv", 9, "r9,ann,p1,1,2024-02-31 08:00:00,1", "shown_at (at) is no moment of the calendar"),
    ("shown.csv", 30, "r9,ann,p1,first,2024-03-01 08:00:00,1", "position (place) is not a whole number"),
    ("shown.csv", 31, "r9,,p1,1,2024-03-01 08:00:00,1", "user_id (who) is empty"),
    ("shown.csv", 40, SHOWN.splitlines()[2], "the same impressions row as an earlier line"),
    ("shown.csv", 68, "r9,ann,p1,1,2204-02-01 08:00:00,1", "shown_at (at) lies outside 1990-01-01 to 2100-01-01"),
]


def test_a_bad_line_is_put_aside_with_its_place_its_text_and_its_reason(loaded: Workspace, tmp_path: Path) -> None:
    files = FILES
    for file, line, text, _ in BAD_LINES:
        files = _insert(files, file, line, text)
    workspace, report = load(write(tmp_path / "in", files), tmp_path / "ws")
    aside = [json.loads(one) for one in (workspace.root / "lake/quarantine/our-app.jsonl").read_text().splitlines()]
    assert [(one["file"], one["line"], one["row"], one["reason"]) for one in aside] == BAD_LINES
    assert {one["file"]: (one["read"], one["kept"]) for one in report["files"]} == {
        "shown.csv": (67, 60), "done.csv": (12, 10), "people.csv": (2, 2)}  # fmt: skip
    for name in ("impressions", "actions", "users"):
        assert workspace.lake.read(TABLES[name]).equals(loaded.lake.read(TABLES[name]))


def test_a_line_in_another_encoding_is_put_aside_and_a_declared_encoding_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "in")
    (folder / "people.csv").write_bytes(PEOPLE.replace("Graz", "Köln").encode("latin-1"))
    (folder / "map.toml").write_text(MAPPING.replace("0.25", "0.6"))
    _, report = load(folder, tmp_path / "ws")
    assert report["rejected"][0]["reason"] == "not utf-8 text" and report["rejected"][0]["line"] == 2
    declared = MAPPING.replace('path = "people.csv"', 'path = "people.csv"\nencoding = "latin-1"')
    (folder / "map.toml").write_text(declared)
    workspace, report = load(folder, tmp_path / "ws")
    assert report["rejected_rows"] == 0 and "Köln" in [row["city"] for row in rows(workspace, "users")]


def test_lines_that_come_too_late_are_put_aside_only_where_the_file_is_said_to_be_in_order(tmp_path: Path) -> None:
    late = _insert(FILES, "done.csv", 5, f"r1-bob,bob,p3,loved,{(START + 9 * HOUR) // 1000}")
    _, report = load(write(tmp_path / "in", late), tmp_path / "ws")
    assert report["rejected_rows"] == 0 and report["out_of_order"]["actions"] == 1
    ordered = 'path = "done.csv"\nordered_by = { from = "ms", time = "ms" }\nlate_s = 3600'
    write(tmp_path / "in", late, MAPPING.replace('path = "done.csv"', ordered))
    _, report = load(tmp_path / "in", tmp_path / "ws")
    assert [(one["line"], one["reason"]) for one in report["rejected"]] == [(5, "out of order by more than 3600 s")]


def test_too_many_bad_lines_stop_the_load_with_counts_by_reason_and_write_nothing(
    loaded: Workspace, tmp_path: Path
) -> None:
    folder, before = write(tmp_path / "in"), everything(loaded.root)
    broken = DONE.replace("loved", "stared", 3).replace("tapped,17", "tapped,x17", 2)
    (folder / "done.csv").write_text(broken)
    message = (r"done.csv: 5 of 10 lines cannot be used, more than the limit of 25.0% \(kind \(event\) is none of the values of "
               r"the map: 3, occurred_at \(ms\) is not a number: 2\); the first is line 2")  # fmt: skip
    with pytest.raises(BadInput, match=message):
        load(folder, loaded.root)
    assert everything(loaded.root) == before


def _change(name: str, old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new)) and None


BREAKAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no file": (lambda folder: (folder / "done.csv").unlink(), "in has no file done.csv"),
    "no column": (_change("done.csv", "event,ms", "event,when"), "done.csv: line 1 lacks column ms; it has: request, who"),
    "utf-16": (lambda folder: (folder / "people.csv").write_bytes(PEOPLE.encode("utf-16")) and None, "line 1 holds a zero byte"),
    "empty": (lambda folder: (folder / "people.csv").write_text("") and None, "people.csv is empty"),
    "header alone": (lambda folder: (folder / "people.csv").write_text("id,joined,town,plan\n") and None, "people.csv has no lines"),
    "no such key": (_change("map.toml", "position =", "place ="), "rows.0.columns.*|table impressions has no column place"),
    "no such table": (_change("map.toml", '"users"', '"people"'), "there is no table people; there are: users"),
    "no unit": (_change("map.toml", ', time = "ms"', ""), "occurred_at is a moment: say its unit"),
    "no such zone": (_change("map.toml", "Europe/Vienna", "Europe/Wien"), "there is no time zone Europe/Wien"),
    "no TOML": (_change("map.toml", "[log]", "[log"), r"map.toml is not TOML: .* \(at line 2"),
    "needed column": (_change("map.toml", 'user_id = "id"\n', ""), "table users needs column user_id"),
    "too short": (_change("map.toml", "attribution_hours = 12", "attribution_hours = 120"), "too short for three windows"),
}  # fmt: skip


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_log_or_mapping_that_cannot_be_right_is_named_and_leaves_the_lake_as_it_was(
    breakage: str, loaded: Workspace, tmp_path: Path
) -> None:
    folder, before = write(tmp_path / "in"), everything(loaded.root)
    spoil, message = BREAKAGES[breakage]
    spoil(folder)
    with pytest.raises(BadInput, match=message):
        load(folder, loaded.root)
    assert everything(loaded.root) == before


def test_numbers_that_are_kept_are_the_logs_own_and_a_word_among_them_is_put_aside(tmp_path: Path) -> None:
    numbered = {name: text.replace("ann", "700").replace("bob", "31") for name, text in FILES.items()}
    mapping = MAPPING.replace("reject_limit", 'number_ids = ["user"]\nreject_limit')
    folder = write(tmp_path / "in", _insert(numbered, "shown.csv", 7, "r9,ann,p1,1,2024-03-01 08:00:00,1"), mapping)
    workspace, report = load(folder, tmp_path / "ws")
    assert {row["user_id"] for row in rows(workspace, "impressions")} == {700, 31}
    assert report["rejected"][0]["reason"] == "user_id (who) is not a whole number from 0 on"
    assert pa.compute.max(workspace.lake.read(TABLES["users"])["user_id"]).as_py() == 701  # the publisher


@pytest.mark.parametrize(("name", "form"), [("people.parquet", "parquet"), ("people.csv.gz", "csv")])
def test_a_file_that_is_not_what_it_is_said_to_be_is_named(name: str, form: str, tmp_path: Path) -> None:
    mapping = MAPPING.replace('path = "people.csv"\nformat = "csv"', f'path = "{name}"\nformat = "{form}"')
    folder = write(tmp_path / "in", mapping=mapping)
    (folder / name).write_bytes(
        gzip.compress(b"id,joined,town,plan\n" * 9)[:-20] if form == "csv" else b"PAR1 nothing PAR1"
    )
    with pytest.raises(BadInput, match=f"{name} cannot be read"):
        load(folder, tmp_path / "ws")


def test_a_header_with_quotation_marks_names_the_same_columns(tmp_path: Path, loaded: Workspace) -> None:
    quoted = {
        name: '"' + text.split("\n", 1)[0].replace(",", '","') + '"\n' + text.split("\n", 1)[1]
        for name, text in FILES.items()
    }
    workspace, report = load(write(tmp_path / "in", quoted), tmp_path / "ws")
    assert report["rejected_rows"] == 0
    assert workspace.lake.read(TABLES["impressions"]).equals(loaded.lake.read(TABLES["impressions"]))
