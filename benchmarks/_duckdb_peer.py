"""Run by the Python of `.venv-peers/duckdb` with a folder: the declared feature states in DuckDB, two threads, written as Parquet.

Imports nothing of this project. `task.json` holds the log's files, the declarations and the moments; `duckdb.json` gets the
seconds. Rows are written in the same order as the lake's.
"""

import json
import sys
import time
from pathlib import Path

import duckdb

KINDS = ("view", "click", "like", "comment", "share", "dwell", "profile", "hide", "report", "post")


def events(task: dict) -> str:
    """The event stream: views, actions and posts; the first known version of a post says its topic."""
    posts, impressions, actions = (task["files"][name] for name in ("posts", "impressions", "actions"))
    return f"""
        CREATE TEMP TABLE events AS
        WITH first AS (
            SELECT DISTINCT ON (post_id) post_id, author_id, topic, created_at, known_at FROM read_parquet({posts})
            ORDER BY post_id, known_at, created_at
        ), done AS (
            SELECT 'view'::kinds AS kind, user_id, author_id, post_id, shown_at AS occurred_at, known_at
            FROM read_parquet({impressions}) WHERE viewed_ms > 0
            UNION ALL
            SELECT kind::kinds, user_id, author_id, post_id, occurred_at, known_at FROM read_parquet({actions})
        )
        SELECT done.*, first.topic FROM done JOIN first USING (post_id)
        UNION ALL
        SELECT 'post'::kinds, author_id, author_id, post_id, created_at, known_at, topic FROM first
    """


def state(family: dict, moment: int) -> str:
    """One family as of `moment`: decayed sums, then latest moments; only keys with a known event."""
    key = ", ".join(family["key"])
    values = [
        f"coalesce(sum(pow(2, (occurred_at - {moment}) / {one['half_life_us']}::DOUBLE)) FILTER (kind IN {_words(one['kinds'])}), 0)"
        for one in family["counters"]
    ] + [
        f"coalesce(max(occurred_at) FILTER (kind IN {_words(one['kinds'])}), 0)::DOUBLE" for one in family["latests"]
    ]  # fmt: skip
    counted = sorted({kind for one in (*family["counters"], *family["latests"]) for kind in one["kinds"]})
    return f"""
        SELECT {moment}::BIGINT AS as_of, {key}, [{", ".join(values)}] AS values
        FROM events WHERE known_at < {moment} AND kind IN {_words(counted)} GROUP BY {key} ORDER BY {key}
    """


def _words(kinds: list[str]) -> str:
    return "(" + ", ".join(f"'{kind}'" for kind in kinds) + ")"


def main() -> None:
    """`_duckdb_peer.py FOLDER`: writes FOLDER/<family>-<moment>.parquet and `duckdb.json`."""
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    began = time.perf_counter()
    with duckdb.connect(config={"threads": 2, "temp_directory": str(folder / "spilled")}) as database:
        database.execute(f"CREATE TYPE kinds AS ENUM {_words(list(KINDS))}")
        database.execute(events(task))
        read_s = time.perf_counter() - began
        for family in task["families"]:
            for moment in task["moments"]:
                target = folder / f"{family['name']}-{moment}.parquet"
                database.execute(f"COPY ({state(family, moment)}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
    seconds = time.perf_counter() - began
    print(json.dumps({"version": duckdb.__version__, "read_s": read_s, "seconds": seconds}))


if __name__ == "__main__":
    main()
