"""Mappings that no log can have and files that hold something else are refused in one sentence, and nothing is written."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import BadInput
from contracts.tables import ACTIONS, IMPRESSIONS
from contracts.workspace import Workspace
from pipelines.sources.mapped import ingest_mapped
from pipelines.sources.mapping import load_mapping

MAPPING = """
[log]
name = "tiny"
reject_limit = 0.5
[[files]]
path = "log.csv"
format = "csv"
[[files.rows]]
table = "impressions"
columns = { user_id = "user", post_id = "post", shown_at = { from = "t", time = "s" }, propensity = "chance" }
[[files.rows]]
table = "actions"
when = { column = "liked", is = "1" }
columns = { user_id = "user", post_id = "post", occurred_at = { from = "t", time = "s", plus_s = 5 }, kind = { value = "like" } }
"""
START_S, DAY_S = 1_714_953_600, 86_400
ROWS = [
    {"user": f"u{n % 5}", "post": f"p{n % 7}", "t": START_S + n * DAY_S // 4, "chance": 0.25, "liked": n % 2}
    for n in range(80)
]


def csv_of(rows: list[dict], end: str = "\n") -> str:
    return end.join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows), ""])


def load(folder: Path, mapping: str) -> Workspace:
    (folder / "map.toml").write_text(mapping)
    workspace = Workspace(folder / "workspace")
    ingest_mapped(load_mapping(folder / "map.toml"), folder, workspace)
    return workspace


LOG, TIME, PLUS, KIND = (
    "reject_limit = 0.5",
    'shown_at = { from = "t", time = "s" }',
    "plus_s = 5",
    'kind = { value = "like" }',
)
CSV, WHEN, PATH, CHANCE = 'format = "csv"', 'is = "1"', '"log.csv"', 'propensity = "chance"'
WRONG: list[tuple[str, str, str]] = [
    *((LOG, f"{name} = {value}", f"log.{name}: ") for name in ("live_days", "warmup_days", "attribution_hours")
      for value in ("inf", "nan", "1e300", "-1")),
    (LOG, "reject_limit = nan", "log.reject_limit: "),
    (LOG, "first_date = 2030-01-01\nlast_date = 2020-01-01", "first_date 2030-01-01 is not before last_date 2020-01-01"),
    (LOG, "first_date = 0001-01-01", "log.first_date"), (LOG, "last_date = 9999-12-31", "log.last_date"),
    (LOG, 'post_kind = "foo"', "post_kind 'foo' is none of text, photo"),
    *((PLUS, f"plus_s = {value}", "plus_s: ") for value in ("inf", "nan", "1e300", "-1e12")),
    *((TIME, f'shown_at = {{ from = "t", time = "s", scale = {value} }}', "scale: ") for value in ("inf", "nan")),
    *((TIME, f'shown_at = {{ from = "t", time = "line", step_s = {value} }}', "step_s: ") for value in ("inf", "nan", "1e300", "0")),
    *((TIME, f'shown_at = {{ from = "t", time = "{one}" }}', f"time '{one}' cannot be used") for one in ("%Q%", "%", "%Y-%")),
    *((TIME, f"shown_at = {{ value = {value} }}", "shown_at") for value in ("99999999999999999999", "nan", "'x'", "5", "0.5")),
    (TIME, TIME + ", known_at = { from = 't', time = 's', default = 'x' }", "known_at cannot be 'x'"),
    *((CSV, f'{CSV}\nlate_s = {value}\nordered_by = {{ from = "t", time = "s" }}', "late_s: ") for value in ("inf", "1e300", "nan")),
    (CSV, f'{CSV}\nordered_by = {{ value = "t", time = "s" }}', "ordered_by needs a column"),
    *((CSV, f'{CSV}\ndelimiter = "{one}"', "delimiter") for one in ("é", "\\n")), (CSV, f'{CSV}\nquote = "«"', "quote '«'"),
    *((PATH, f'"{one}"', f"path '{one}' names no file") for one in ("/etc/passwd", "", "../log.csv", "a/../../log.csv")),
    (PATH, "[]", "files.0.path"), (PATH, '"a**"', "cannot be looked for"),
    ("[[files.rows]]", '[[files.rows]]\neach = { column = "liked", separator = "", pattern = "(?P<a>.*)" }', "separator"),
    ("[[files.rows]]", '[[files.rows]]\neach = { column = "liked", separator = " ", pattern = "(" }', "'\\(' cannot be used"),
    *((WHEN, f"above = {value}", "above: ") for value in ("nan", "inf")),
    (f", {WHEN}", "", "when names column liked and no condition"),
    *(('user_id = "user"', f'user_id = {{ from = "user", {one} }}', "user_id is no number") for one in ("less = 1", "scale = 2")),
    (TIME, TIME + ", position = { from = 't', less = -9223372036854775807 }", "less: "),
    *((KIND, f"kind = {{ value = {value} }}", f"kind cannot be {value}: it is one of click, like") for value in ("'foo'", "5")),
    (KIND, "kind = { from = 'liked', map = { 1 = 'foo' } }", "kind cannot be 'foo'"),
    (KIND, "kind = { from = 'liked', default = 'foo' }", "kind cannot be 'foo'"),
    *((CHANCE, f"propensity = {{ value = {value} }}", "propensity cannot be .*lies above 0") for value in ("-3", "0", "1.5")),
    *((CHANCE, f"propensity = {{ value = {value} }}", "propensity") for value in ("nan", "inf", "'nan'", "'inf'", "'x'")),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words"), WRONG)
def test_a_mapping_that_no_log_can_have_is_refused_when_it_is_read(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "log.csv").write_text(csv_of(ROWS))
    assert old in MAPPING
    with pytest.raises(BadInput, match=words):
        load(tmp_path, MAPPING.replace(old, new, 1))
    assert not (tmp_path / "workspace").exists()


def test_the_mapping_that_the_wrong_ones_are_made_from_is_right(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(csv_of(ROWS))
    assert load(tmp_path, MAPPING).dataset().counts["impressions"] == len(ROWS)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [("word", "stared", "kind (word) is none of click, like"), ("chance", "-3", "propensity (chance) is no probability"),
     ("chance", "0", "propensity (chance) is no probability"), ("chance", "1e999", "propensity (chance) is too large")],
)  # fmt: skip
def test_a_line_with_an_unknown_word_or_an_impossible_chance_gives_no_row(
    column: str, value: str, words: str, tmp_path: Path
) -> None:
    rows = [row | {"word": "like"} for row in ROWS]
    rows[1] = rows[1] | {column: value}
    (tmp_path / "log.csv").write_text(csv_of(rows))
    workspace = load(tmp_path, MAPPING.replace(KIND, 'kind = "word"'))
    assert workspace.lake.read(IMPRESSIONS).num_rows == len(ROWS) - 1
    assert set(workspace.lake.read(ACTIONS)["kind"].to_pylist()) == {"like"}
    assert words in (workspace.root / "lake/quarantine/tiny.jsonl").read_text()


PARQUET = MAPPING.replace(PATH, '"log.parquet"').replace(CSV, 'format = "parquet"')
COUNT = len(ROWS)


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("user", pa.array([["a"]] * COUNT), "column user holds list"),
        ("user", pa.array([{"a": 1}] * COUNT), "column user holds struct"),
        ("liked", pa.array([[("a", 1)]] * COUNT, pa.map_(pa.string(), pa.int64())), "column liked holds map"),
        ("user", pa.array([b"\xff\xfe"] * COUNT), "80 of 80 lines cannot be used, .* not utf-8 text"),
        ("post", None, "line 1 has column post more than once"),
    ],
)
def test_a_parquet_column_of_another_kind_is_named(name: str, column: Any, words: str, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    if column is None:
        table = table.append_column(name, table[name])
    else:
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(BadInput, match=words):
        load(tmp_path, PARQUET)
    assert not (tmp_path / "workspace").exists()


def test_parquet_bytes_that_are_text_are_read_and_others_put_aside_line_by_line(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    users = [row["user"].encode() for row in ROWS]
    users[3] = b"\xff"
    pq.write_table(table.set_column(0, "user", pa.array(users)), tmp_path / "log.parquet")
    workspace = load(tmp_path, PARQUET)
    assert workspace.lake.read(IMPRESSIONS).num_rows == COUNT - 1
    assert '"line": 4, "reason": "not utf-8 text"' in (workspace.root / "lake/quarantine/tiny.jsonl").read_text()


@pytest.mark.parametrize(
    ("cells", "words"),
    [(pa.array([["0.5", "x"]] + [["0.5"]] * (COUNT - 1)), "features"), (pa.array(["[[1]]"] + ["[1]"] * (COUNT - 1)), "features"),
     (pa.array(["[null]"] + ["[1]"] * (COUNT - 1)), "features")],
)  # fmt: skip
def test_a_list_of_something_else_is_put_aside_alone(cells: pa.Array, words: str, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS).append_column("numbers", cells), tmp_path / "log.parquet")
    mapping = PARQUET.replace(CHANCE, f'{CHANCE}, features = {{ from = "numbers", separator = " " }}')
    workspace = load(tmp_path, mapping)
    assert workspace.lake.read(IMPRESSIONS).num_rows == COUNT - 1
    assert words in (workspace.root / "lake/quarantine/tiny.jsonl").read_text()


def test_lines_that_end_with_a_carriage_return_alone_are_named(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(csv_of(ROWS, "\r").encode())
    with pytest.raises(BadInput, match="line 1 holds a carriage return"):
        load(tmp_path, MAPPING)


@pytest.mark.parametrize(
    "url", ["http://x:1", "redis://127.0.0.1:notaport", "redis://127.0.0.1:99999", "redis://[", "redis://127.0.0.1:1?db=x",
            "redis://127.0.0.1:1?colour=red", "nonsense", ""]
)  # fmt: skip
def test_an_address_that_is_no_redis_is_refused_before_anything_is_asked(url: str) -> None:
    pytest.importorskip("pyspark")
    from pipelines.sources.stream.redis_source import last_ids

    with pytest.raises(BadInput, match="is no address of a Redis"):
        last_ids(url)
