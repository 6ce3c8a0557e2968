"""HetRec as lake tables, the map of its ids, and what was put aside."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.clock import DAY, day_of
from contracts.files import write_atomically
from contracts.tables import (
    ACTIONS,
    FRIENDSHIPS,
    IMPRESSIONS,
    POSTS,
    REQUESTS,
    SUBJECTS,
    TABLES,
    TOPICS,
    USERS,
    TableSpec,
)
from contracts.workspace import Workspace
from pipelines.sources.foreign_files import Columns, Rejected
from pipelines.sources.hetrec_feed import POLICY, Feed
from pipelines.sources.hetrec_posts import Posts

VIEWED_MS = 1000
TAGS_IN_TEXT = 8


def user_ids(files: dict[str, Columns]) -> np.ndarray:
    """All users that any file names; there is no file of users."""
    named = [
        files["listens"].numbers["userID"],
        files["friends"].numbers["userID"],
        files["friends"].numbers["friendID"],
    ]
    return np.unique(np.concatenate([*named, files["taggings"].numbers["userID"]]))


def tables_of(files: dict[str, Columns], posts: Posts, feed: Feed, *, start: int) -> dict[str, pa.Table]:
    """Every table of the lake; those that HetRec has nothing for are empty."""
    users = user_ids(files)
    first_day = np.full(len(users), start // DAY)
    at_P = np.searchsorted(users, posts.user_P)
    first_day[at_P[::-1]] = posts.day_P[::-1]  # the last write wins, and posts run forward in time
    friends, artists, tags = (files[name].numbers for name in ("friends", "artists", "tags"))
    artist_name = dict(zip(artists["id"].tolist(), files["artists"].texts["name"]))
    tag_name = dict(zip(tags["tagID"].tolist(), files["tags"].texts["tagValue"]))
    texts = [_text(artist, tags, artist_name, tag_name) for artist, tags in zip(posts.artist_P.tolist(), posts.tags_P)]
    post_id_P, shown, request = posts.post_id_P, feed.shown_post_I, feed.shown_request_I
    request_id_R = np.arange(1, len(feed.request_user_R) + 1)
    shown_at_I = feed.requested_at_R[request]
    tables = {
        "users": _table(USERS, user_id=users, registered_at=first_day * DAY, known_at=first_day * DAY),
        "friendships": _table(
            FRIENDSHIPS, user_id=friends["userID"], friend_id=friends["friendID"], since=_full(friends["userID"], start),
            kind=_full(friends["userID"], "friend"), source=_full(friends["userID"], "hetrec"), known_at=_full(friends["userID"], start),
        ),
        "posts": _table(
            POSTS, post_id=post_id_P, author_id=posts.user_P, subject_id=posts.artist_P, created_at=posts.created_at_P,
            known_at=posts.created_at_P, kind=_full(post_id_P, "link"), topic=posts.topic_P, text=texts,
            visibility=_full(post_id_P, "public"),
        ),
        "topics": _table(TOPICS, topic=tags["tagID"], name=files["tags"].texts["tagValue"], known_at=_full(tags["tagID"], start)),
        "subjects": _table(
            SUBJECTS, subject_id=artists["id"], name=files["artists"].texts["name"], kind=_full(artists["id"], "artist"),
            url=files["artists"].texts["url"], known_at=_full(artists["id"], start),
        ),
        "requests": _table(
            REQUESTS, request_id=request_id_R, user_id=feed.request_user_R, requested_at=feed.requested_at_R,
            policy=_full(request_id_R, POLICY), slate_size=np.bincount(request, minlength=len(request_id_R)),
            candidates=[post_id_P[pool] for pool in feed.candidates_R], known_at=feed.requested_at_R,
        ),
        "impressions": _table(
            IMPRESSIONS, request_id=request_id_R[request], user_id=feed.request_user_R[request], post_id=post_id_P[shown],
            author_id=posts.user_P[shown], position=feed.shown_position_I, shown_at=shown_at_I, viewed_ms=_full(shown, VIEWED_MS),
            policy=_full(shown, POLICY), known_at=shown_at_I,
        ),
        "actions": _table(
            ACTIONS, action_id=np.arange(1, len(feed.action_user_A) + 1), user_id=feed.action_user_A,
            post_id=post_id_P[feed.action_post_A], author_id=posts.user_P[feed.action_post_A], kind=_full(feed.action_user_A, "share"),
            occurred_at=feed.acted_at_A, known_at=feed.acted_at_A,
        ),
    }  # fmt: skip
    # An earlier log in the same workspace must not show through.
    return tables | {name: spec.schema.empty_table() for name, spec in TABLES.items() if name not in tables}


def identities(files: dict[str, Columns], posts: Posts) -> pa.Table:
    """(kind, id, foreign): which of HetRec's own ids each id of the lake stands for."""
    same = {"user": user_ids(files), "subject": files["artists"].numbers["id"], "topic": files["tags"].numbers["tagID"]}
    kinds = np.repeat([*same, "post"], [*(len(ids) for ids in same.values()), len(posts.day_P)])
    days = [str(day_of(int(day) * DAY)) for day in range(posts.day_P.min(), posts.day_P.max() + 1)]
    foreign_posts = [
        f"{user}/{artist}/{days[day]}"
        for user, artist, day in zip(
            posts.user_P.tolist(), posts.artist_P.tolist(), (posts.day_P - posts.day_P.min()).tolist()
        )
    ]
    foreign = [str(number) for ids in same.values() for number in ids.tolist()] + foreign_posts
    return pa.table(
        {"kind": kinds.tolist(), "id": np.concatenate([*same.values(), posts.post_id_P]), "foreign": foreign}
    )


def write(workspace: Workspace, tables: dict[str, pa.Table], ids: pa.Table, rejected: Rejected) -> None:
    """Writes all tables, the id map and the quarantine; the caller saves the dataset last.

    The dataset's description goes first, so a load that is killed half-way leaves a lake that says it holds no log.
    """
    workspace.dataset_path.unlink(missing_ok=True)
    for name, table in tables.items():
        workspace.lake.write(TABLES[name], table)
    sink = io.BytesIO()
    pq.write_table(ids, sink, compression="zstd")
    write_atomically(workspace.root / "lake" / "ids" / "hetrec.parquet", sink.getvalue())
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rejected.rows)
    write_atomically(workspace.root / "lake" / "quarantine" / "hetrec.jsonl", lines.encode())


def _text(artist: int, tags: np.ndarray, artist_name: dict[int, str], tag_name: dict[int, str]) -> str:
    names = [tag_name[tag] for tag in tags.tolist()]
    more = f" and {len(names) - TAGS_IN_TEXT} more" if len(names) > TAGS_IN_TEXT else ""
    return f"tagged {artist_name.get(artist, f'artist {artist}')} with {', '.join(names[:TAGS_IN_TEXT])}{more}"


def _full(like_N: np.ndarray, value: object) -> list:
    return [value] * len(like_N)


def _table(spec: TableSpec, **columns: object) -> pa.Table:
    """A table of `spec`; columns not given are null."""
    rows = len(next(iter(columns.values())))  # type: ignore[arg-type]
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in spec.schema
    ]
    return pa.Table.from_arrays(arrays, schema=spec.schema)
