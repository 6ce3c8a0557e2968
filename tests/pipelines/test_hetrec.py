"""HetRec Last.fm: the published counts, feeds that recency alone decides, and broken files that change nothing."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.events import event_stream
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS, REQUESTS, TABLES, USERS
from contracts.workspace import Workspace
from pipelines.sources.hetrec import HetrecSettings, ingest

SMALL = HetrecSettings(slate_size=2, live_days=200, attribution_days=20, warmup_days=10)


@pytest.fixture(scope="module")
def real(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, dict]:
    workspace = Workspace(tmp_path_factory.mktemp("hetrec"))
    return workspace, ingest(shared_data / "hetrec-lastfm-2k", workspace)


def write_small(folder: Path, taggings: list[str] | None = None) -> Path:
    """Three users, 1 and 2 and 2 and 3 friends, four artists, two tags, taggings over half a year."""
    folder.mkdir(exist_ok=True)
    taggings = taggings or [
        "1\t10\t7\t1\t1\t2009", "1\t10\t8\t1\t1\t2009", "2\t10\t7\t1\t2\t2009", "2\t11\t8\t1\t2\t2009", "1\t12\t7\t1\t3\t2009",
        "3\t11\t7\t1\t4\t2009", "2\t13\t7\t1\t5\t2009", "1\t13\t8\t1\t6\t2009", "3\t13\t8\t1\t7\t2009",
    ]  # fmt: skip
    files = {
        "artists.dat": ["id\tname\turl\tpictureURL"]
        + [f"{i}\tArtist {i}\thttp://x/{i}\thttp://p/{i}" for i in (10, 11, 12, 13)],
        "tags.dat": ["tagID\ttagValue", "7\trock", "8\tpop"],
        "user_artists.dat": ["userID\tartistID\tweight", "1\t10\t5", "2\t11\t6"],
        "user_friends.dat": ["userID\tfriendID", "1\t2", "2\t1", "2\t3", "3\t2"],
        "user_taggedartists.dat": ["userID\tartistID\ttagID\tday\tmonth\tyear", *taggings],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.data
def test_the_published_counts_come_out_and_the_five_impossible_dates_are_put_aside(
    real: tuple[Workspace, dict],
) -> None:
    workspace, report = real
    counts = report["counts"]
    published = {"users": 1892, "artists": 17632, "friendships": 12717, "listens": 92834, "tag_events": 186479}
    assert {name: counts[name] for name in published} == published
    assert counts["tag_events_impossible_date"] == report["rejected_rows"] == 5
    aside = [json.loads(line) for line in (workspace.root / "lake/quarantine/hetrec.jsonl").read_text().splitlines()]
    assert Counter(row["row"].split("\t")[-1] for row in aside) == {"1956": 3, "1957": 1, "1979": 1}
    taggings = next(file for file in report["files"] if file["file"] == "user_taggedartists.dat")
    assert (taggings["read"], taggings["kept"]) == (186_479, 186_474) and set(report["lacks"]) >= {
        "propensities",
        "views",
    }
    tags = {row["topic"]: row["name"] for row in workspace.lake.read(TABLES["topics"]).to_pylist()}
    assert tags[10] and "tropicália" in tags.values()  # tags.dat is Latin-1, artists.dat is UTF-8
    assert "Röyksopp" in workspace.lake.read(TABLES["subjects"])["name"].to_pylist()


@pytest.mark.data
def test_a_slate_is_the_most_recent_friends_posts_of_earlier_days_whatever_followed(
    real: tuple[Workspace, dict],
) -> None:
    workspace, report = real
    lake = workspace.lake
    posts = lake.read(POSTS)
    created = dict(zip(posts["post_id"].to_pylist(), posts["created_at"].to_pylist()))
    author = dict(zip(posts["post_id"].to_pylist(), posts["author_id"].to_pylist()))
    by_author = defaultdict(list)
    for post_id, author_id in author.items():
        by_author[author_id].append(post_id)
    friends = defaultdict(set)
    for row in lake.read(TABLES["friendships"]).to_pylist():
        friends[row["user_id"]].add(row["friend_id"])
    slates = defaultdict(list)
    for row in lake.read(IMPRESSIONS, ("request_id", "position", "post_id")).to_pylist():
        slates[row["request_id"]].append((row["position"], row["post_id"]))
    requests = lake.read(REQUESTS).to_pylist()
    for request in requests[::97]:
        day = request["requested_at"] // DAY * DAY
        pool = {
            p
            for friend in friends[request["user_id"]]
            for p in by_author[friend]
            if day - 365 * DAY <= created[p] < day
        }
        assert set(request["candidates"]) == pool
        slate = [post for _, post in sorted(slates[request["request_id"]])]
        assert slate == sorted(pool, key=lambda p: created[p], reverse=True)[:50]
    assert 300_000 < report["counts"]["impressions"] < 400_000
    assert report["counts"]["shares_of_shown_posts"] > 2000


@pytest.mark.data
def test_loading_twice_gives_the_same_bytes(real: tuple[Workspace, dict], shared_data: Path) -> None:
    workspace, _ = real
    before = everything(workspace.root)
    ingest(shared_data / "hetrec-lastfm-2k", workspace)
    assert everything(workspace.root) == before


def test_a_share_is_credited_to_the_most_recent_friends_post_of_that_artist(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "ws")
    ingest(write_small(tmp_path / "in"), workspace, SMALL)
    posts = {row["post_id"]: row for row in workspace.lake.read(POSTS).to_pylist()}
    shares = [
        (row["user_id"], row["author_id"], posts[row["post_id"]]["subject_id"])
        for row in workspace.lake.read(ACTIONS).to_pylist()
    ]
    # 2 follows 1 to artist 10; 3 follows 2 to 11; 1 follows 2 to 13; 3 follows 2 to 13 (1 is no friend of 3).
    assert shares == [(2, 1, 10), (3, 2, 11), (1, 2, 13), (3, 2, 13)]
    events = event_stream(*(workspace.lake.read(spec) for spec in (POSTS, IMPRESSIONS, ACTIONS)))
    assert Counter(events["kind"].to_pylist())["share"] == 4
    users = workspace.lake.read(USERS)
    assert users["user_id"].to_pylist() == [1, 2, 3]
    assert np.all(users["known_at"].to_numpy() == users["registered_at"].to_numpy())


def test_nothing_is_shown_or_credited_before_it_was_posted(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "ws")
    ingest(write_small(tmp_path / "in"), workspace, SMALL)
    created = {row["post_id"]: row["created_at"] for row in workspace.lake.read(POSTS).to_pylist()}
    shown = workspace.lake.read(IMPRESSIONS).to_pylist()
    assert shown
    assert all(created[row["post_id"]] // DAY < row["shown_at"] // DAY for row in shown)
    assert all(
        created[row["post_id"]] // DAY < row["occurred_at"] // DAY for row in workspace.lake.read(ACTIONS).to_pylist()
    )


def test_a_posts_topic_is_its_tag_most_used_on_earlier_dates(tmp_path: Path) -> None:
    taggings = [
        "1\t10\t7\t1\t1\t2009",
        "1\t10\t8\t1\t1\t2009",
        "2\t11\t8\t1\t2\t2009",
        "2\t12\t7\t1\t6\t2009",
        "2\t12\t8\t1\t6\t2009",
    ]
    # On 1 June pop (8) was used twice and rock (7) once; that rock is used a thousand times later must not matter.
    later = [f"3\t{10 + i % 4}\t7\t{1 + i // 4}\t7\t2009" for i in range(80)]
    workspace = Workspace(tmp_path / "ws")
    ingest(write_small(tmp_path / "in", taggings + later), workspace, SMALL)
    topics = {
        (row["author_id"], row["subject_id"]): row["topic"]
        for row in workspace.lake.read(POSTS).to_pylist()
        if row["author_id"] < 3
    }
    assert topics == {(1, 10): 7, (2, 11): 8, (2, 12): 8}


def _missing(folder: Path) -> None:
    (folder / "tags.dat").unlink()


def _without_column(folder: Path) -> None:
    path = folder / "user_friends.dat"
    path.write_text(path.read_text().replace("friendID", "buddy"))


def _short_lines(folder: Path) -> None:
    path = folder / "user_taggedartists.dat"
    path.write_text(path.read_text().replace("1\t12\t7\t1\t3\t2009", "1\t12\t7"))


def _utf16(folder: Path) -> None:
    path = folder / "artists.dat"
    path.write_bytes(path.read_text().encode("utf-16"))


def _neither_encoding(folder: Path) -> None:
    path = folder / "tags.dat"
    path.write_bytes(path.read_bytes().replace(b"pop", b"p\x93p"))


def _words_for_numbers(folder: Path) -> None:
    path = folder / "user_artists.dat"
    path.write_text(path.read_text().replace("\t5\n", "\tmany\n"))


def _impossible_dates(folder: Path) -> None:
    path = folder / "user_taggedartists.dat"
    path.write_text(path.read_text().replace("1\t5\t2009", "31\t2\t2009"))


def _header_only(folder: Path) -> None:
    (folder / "user_friends.dat").write_text("userID\tfriendID\n")


BREAKAGES = {
    _missing: "tags.dat does not exist",
    _without_column: "user_friends.dat: line 1 lacks column friendID",
    _short_lines: "user_taggedartists.dat: 1 of 9 lines .* line 6: 3 columns instead of 6",
    _utf16: "artists.dat: line 1 holds a zero byte",
    _neither_encoding: "tags.dat: line 3 is neither UTF-8 nor Latin-1",
    _words_for_numbers: "user_artists.dat: 1 of 2 lines .* line 2: 'many' is not a whole number",
    _impossible_dates: "user_taggedartists.dat: 1 of 9 lines .* line 8: no such date",
    _header_only: "user_friends.dat has a header and no lines",
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_file_is_named_with_its_line_and_leaves_the_lake_as_it_was(
    breakage: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = write_small(tmp_path / "in")
    workspace = Workspace(tmp_path / "ws")
    ingest(folder, workspace, SMALL)
    before = everything(workspace.root)
    breakage(folder)
    with pytest.raises(BadInput, match=BREAKAGES[breakage]):
        ingest(folder, workspace, SMALL)
    assert everything(workspace.root) == before


def test_a_few_bad_lines_are_put_aside_and_the_rest_is_loaded(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "in")
    path = folder / "user_taggedartists.dat"
    path.write_text(path.read_text() + "1\t11\t99\t1\t3\t2009\n" + "1\t10\t7\t1\t1\t2009\n" + "1\t10\n")
    report = ingest(folder, Workspace(tmp_path / "ws"), SMALL.model_copy(update={"reject_limit": 0.5}))
    assert [(row["line"], row["reason"]) for row in report["rejected"]] == [
        (13, "2 columns instead of 6"),
        (12, "the same key as an earlier line"),
        (11, "a tag that tags.dat does not have"),
    ]
    assert report["counts"]["posts"] == 8
