"""HetRec 2011 Last.fm (users, friends, artists, tags by date) as a friend-feed log; `docs/data.md` has the rules in words."""

from datetime import date
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from contracts.clock import DAY, to_datetime
from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.progress import say, stage
from contracts.workspace import Workspace
from pipelines.sources import hetrec_tables
from pipelines.sources.foreign_files import Columns, Rejected, read_columns
from pipelines.sources.hetrec_feed import Feed, derive_feed
from pipelines.sources.hetrec_posts import Posts, posts_of
from pipelines.sources.lacks import lacks_of

DERIVED = {
    "friendships.since": "the files hold no dates of friendships: all are taken to be known from the log's start",
    "users.registered_at": "midnight (UTC) of the user's first tagging; the log's start for a user who tags nothing",
    "posts": "one post of kind link per (user, artist, date) that has taggings; public, as taggings are on Last.fm",
    "posts.created_at": "the date plus 12 h plus a hash of (user, artist, date) inside the next 12 h; the files hold dates only",
    "posts.topic": "of the post's tags the one most used in the log on earlier dates; the lowest tag id among equals",
    "requests": "one per (user, date with taggings) that has candidates, at the date plus a hash of (user, date) below 12 h",
    "requests.candidates": "friends' posts of strictly earlier dates inside the live window, most recent first",
    "impressions": "the first slate_size candidates: recency alone picks them, never what the user did",
    "impressions.viewed_ms": "1000 for all: the files do not say what was looked at, so every impression counts as viewed",
    "actions": "kind share: a user's first tagging of an artist that a friend had posted on a strictly earlier date inside "
    "the live window counts for the most recent such post; no request is named",
}
NOT_USED = {"listens": "listening counts carry no time, so as features they would tell the future; counted, not used"}
NO_DATE = int(np.iinfo(np.int64).min)


class HetrecSettings(BaseModel):
    """How the files become a log."""

    model_config = ConfigDict(frozen=True)

    slate_size: int = Field(50, ge=1, description="most recent candidates that count as shown, per request")
    live_days: int = Field(365, ge=1, description="days that a post stays a candidate")
    attribution_days: int = Field(45, ge=1, description="days after an impression in which a share counts for it")
    warmup_days: int = Field(883, ge=0, description="days of history before the first sample; 883 ends on 2008-01-01")
    first_date: date = Field(date(2005, 1, 1), description="taggings of earlier dates are impossible")
    last_date: date = Field(date(2011, 12, 31), description="taggings of later dates are impossible")
    reject_limit: float = Field(0.01, ge=0, le=1, description="share of a file's lines that may be unusable")


def ingest(path: Path, workspace: Workspace, settings: HetrecSettings | None = None) -> dict:
    """Reads the folder `path` of HetRec `.dat` files into the lake; the report has the published counts.

    Unusable lines go to `lake/quarantine/hetrec.jsonl` with their reason. `BadInput`, and nothing written, when a file
    is missing or broken, or too many of its lines are unusable.
    """
    settings = settings or HetrecSettings()
    path = Path(path)
    if not path.is_dir():
        raise BadInput(f"{path} is not a folder: HetRec Last.fm is a folder of .dat files")
    rejected = Rejected()
    with stage("read HetRec Last.fm"):
        files = _read(path, settings, rejected)
    with stage("derive posts and feeds"):
        posts = posts_of(files["taggings"], files["tags"].numbers["tagID"])
        start = posts.day_P.min() * DAY
        feed = derive_feed(
            posts, files["friends"].numbers["userID"], files["friends"].numbers["friendID"],
            slate_size=settings.slate_size, live_days=settings.live_days,
        )  # fmt: skip
    counts = _counts(files, posts, feed, rejected)
    dataset = Dataset(
        source="hetrec-lastfm-2k", start=int(start), end=int((posts.day_P.max() + 1) * DAY), warmup_us=settings.warmup_days * DAY,
        attribution_us=settings.attribution_days * DAY, live_us=settings.live_days * DAY, tasks=("share",), has_propensities=False,
        derived=DERIVED, counts=counts, settings=settings.model_dump(mode="json"),
    )  # fmt: skip
    split = dataset.split()  # says now, before anything is written, when the log is too short
    with stage("write lake"):
        tables = hetrec_tables.tables_of(files, posts, feed, start=dataset.start)
        hetrec_tables.write(workspace, tables, hetrec_tables.identities(files, posts), rejected)
        dataset.save(workspace.dataset_path)
    report = {
        "source": dataset.source, "counts": counts, "files": [rejected.of_file(file.file, file.lines) for file in files.values()],
        # Positions and pools are derived whole here, so nothing of them is lacking.
        "lacks": lacks_of(tables, {"impressions.viewed_ms": DERIVED["impressions.viewed_ms"]}),
        "rejected": rejected.rows[:20], "rejected_rows": len(rejected.rows), "not_used": NOT_USED, "derived": DERIVED,
        "split": {name: [str(to_datetime(at).date()) for at in getattr(split, name)] for name in ("train", "validation", "test")},
        "tables": {name: table.num_rows for name, table in tables.items()},
    }  # fmt: skip
    say(
        f"  {counts['users']} users, {counts['posts']} posts, {counts['impressions']} impressions, {len(rejected.rows)} rows put aside"
    )
    return report


def _read(folder: Path, settings: HetrecSettings, rejected: Rejected) -> dict[str, Columns]:
    """The five files, checked against each other."""
    headers = {
        "artists": ("artists.dat", ("id", "name", "url", "pictureURL"), ("name", "url", "pictureURL")),
        "tags": ("tags.dat", ("tagID", "tagValue"), ("tagValue",)),
        "listens": ("user_artists.dat", ("userID", "artistID", "weight"), ()),
        "friends": ("user_friends.dat", ("userID", "friendID"), ()),
        "taggings": ("user_taggedartists.dat", ("userID", "artistID", "tagID", "day", "month", "year"), ()),
    }
    files = {
        key: read_columns(folder, name, header, texts, rejected, settings.reject_limit)
        for key, (name, header, texts) in headers.items()
    }
    keys = {"artists": ("id",), "tags": ("tagID",), "listens": ("userID", "artistID"), "friends": ("userID", "friendID"),
            "taggings": ("userID", "artistID", "tagID", "day", "month", "year")}  # fmt: skip
    for key, names in keys.items():
        files[key] = files[key].reject(_repeated(files[key], names), "the same key as an earlier line", rejected)
    friends = files["friends"]
    itself = friends.numbers["userID"] == friends.numbers["friendID"]
    files["friends"] = friends.reject(itself, "a user's friendship with itself", rejected)
    taggings = files["taggings"]
    unknown_N = ~np.isin(taggings.numbers["tagID"], files["tags"].numbers["tagID"])
    taggings = taggings.reject(unknown_N, "a tag that tags.dat does not have", rejected)
    day_N = _day_numbers(taggings)
    taggings = taggings.reject(day_N == NO_DATE, "no such date", rejected)
    day_N = day_N[day_N != NO_DATE]
    outside_N = (day_N < _epoch_day(settings.first_date)) | (day_N > _epoch_day(settings.last_date))
    years = f"a date outside {settings.first_date} to {settings.last_date}"
    files["taggings"] = taggings.reject(outside_N, years, rejected)
    files["taggings"].numbers["day_number"] = day_N[~outside_N]
    for file in files.values():
        rejected.check_share(file.file, file.lines, settings.reject_limit)
    if not len(files["taggings"].line_N):
        raise BadInput(f"{folder / 'user_taggedartists.dat'} has no usable tagging")
    return files


def _repeated(columns: Columns, key: tuple[str, ...]) -> np.ndarray:
    rows = np.stack([columns.numbers[name] for name in key], axis=1)
    _, first = np.unique(rows, axis=0, return_index=True)
    repeated = np.ones(len(rows), bool)
    repeated[first] = False
    return repeated


def _epoch_day(day: date) -> int:
    return (day - date(1970, 1, 1)).days


def _day_numbers(taggings: Columns) -> np.ndarray:
    """Days since 1970 of each row, `NO_DATE` where the calendar has no such day."""
    dates = np.stack([taggings.numbers[name] for name in ("year", "month", "day")], axis=1)
    unique, at = np.unique(dates, axis=0, return_inverse=True)
    return np.array([_day_number(*map(int, row)) for row in unique], dtype=np.int64)[at.reshape(-1)]


def _day_number(year: int, month: int, day: int) -> int:
    try:
        return _epoch_day(date(year, month, day))
    except (ValueError, OverflowError):
        return NO_DATE


def _counts(files: dict[str, Columns], posts: Posts, feed: Feed, rejected: Rejected) -> dict[str, int]:
    friends = files["friends"].numbers
    pairs = set(zip(friends["userID"].tolist(), friends["friendID"].tolist()))
    mutual = sum((b, a) in pairs for a, b in pairs) // 2
    return {
        "users": len(hetrec_tables.user_ids(files)), "artists": len(files["artists"].line_N), "tags": len(files["tags"].line_N),
        "friendships": mutual, "one_way_friendships": len(pairs) - 2 * mutual,
        "listens": len(files["listens"].line_N), "tag_events": files["taggings"].lines,
        "tag_events_impossible_date": sum("date" in row["reason"] for row in rejected.rows),
        "tagged_artists_not_listed": len(np.setdiff1d(files["taggings"].numbers["artistID"], files["artists"].numbers["id"])),
        "posts": len(posts.day_P), "requests": len(feed.request_user_R), "requests_without_candidates": feed.empty_requests,
        "impressions": len(feed.shown_post_I), "actions": len(feed.action_user_A),
        "shares_of_shown_posts": feed.shares_shown,
    }  # fmt: skip
