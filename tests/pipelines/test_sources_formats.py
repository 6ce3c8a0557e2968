"""Published logs by their layouts: the rows that come out are those that the files hold, and the same bytes each time."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from contracts.clock import HOUR, SECOND, to_datetime
from contracts.tables import TABLES
from contracts.workspace import Workspace
from pipelines.sources import FORMATS, SOURCES
from tests.pipelines.test_sources_mapped import everything, foreign_of, rows

KUAIRAND = ("user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
            "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab\n")  # fmt: skip


def _kuairand(folder: Path) -> None:
    def log(name: str, days: range, rand: int) -> None:
        lines = [
            f"{user},{20 + (day + user + slot) % 6},202204{day:02d},900,{1649289600000 + (day - 7) * 86_400_000},"
            f"{slot},{int(user == 2) * slot},0,0,0,{int(user == 1) * slot},0,{slot * 5332},11450,0,0,0,{rand},1\n"
            for day in days
            for user in (1, 2)
            for slot in (0, 1)
        ]  # fmt: skip
        (folder / name).write_text(KUAIRAND + "".join(lines))

    log("log_standard_4_08_to_4_21_1k.csv", range(8, 15), 0)
    log("log_standard_4_22_to_5_08_1k.csv", range(22, 28), 0)
    log("log_random_4_22_to_5_08_1k.csv", range(28, 31), 1)
    videos = "".join(
        f'{video},9{video % 2},NORMAL,2022-04-01,x,0.0,1.0,1.0,1.0,77,9.0,"{video % 3},5"\n' for video in range(20, 26)
    )
    (folder / "video_features_basic_1k.csv").write_text(
        "video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,server_width,server_height,music_id,"
        f"music_type,tag\n{videos}"
    )
    (folder / "user_features_1k.csv").write_text("user_id,is_live_streamer,is_video_author\n1,0,1\n2,0,0\n")


def _mind(folder: Path) -> None:
    for part, first_day in (("train", 9), ("dev", 15)):
        (folder / part).mkdir(parents=True)
        lines = [
            f"{number}\tU{number % 3}\t11/{first_day + number // 3}/2019 8:55:22 {'AM' if number % 2 else 'PM'}\tN9 N8\t"
            f"N1-0 N2-1 N{3 + number % 3}-0\n"
            for number in range(1, 15)
        ]
        (folder / part / "behaviors.tsv").write_text("".join(lines))
        news = [
            f'N{n}\tsports\tgolf\tA "title" {n}\tabstract\thttps://x/{n}\t[]\t[{{"Label": "x"}}]\n' for n in range(1, 6)
        ]
        (folder / part / "news.tsv").write_text("".join(news))


def _recsys_2020(folder: Path) -> None:
    lines = []
    for number in range(60):
        at = 1_581_000_000 + number * 20_000
        engaged = number % 2
        fields = ["101 56898", "tag\ttag2", f"T{number}", "Photo", "", "", "TopLevel", "LANG", str(at), f"A{number % 5}", "10", "2",
                  "false", "1300000000", f"R{number % 3}", "5", "6", "false", "1400000000", "true" if number % 3 == 0 else "false",
                  "", str(at + 60) if engaged else "", "", str(at + 30) if engaged else ""]  # fmt: skip
        lines.append("\x01".join(fields))
    (folder / "training.tsv").write_text("\n".join(lines) + "\n")


def _shared(*parts: str) -> Callable[[Path, Path], Path]:
    return lambda folder, shared: shared.joinpath(*parts)


def _written(write: Callable[[Path], None]) -> Callable[[Path, Path | None], Path]:
    def make(folder: Path, shared: Path | None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)
        return folder

    return make


WRITTEN = {"kuairand": _written(_kuairand), "mind": _written(_mind), "recsys-2020": _written(_recsys_2020)}
"""Layouts whose files are not here: small logs of that layout."""
SHARED = {
    "kuairand27k-likehate": _shared("kuairand27k-likehate"), "open-bandit": _shared("obd-sample"),
    "wechat-channels": _shared("format-samples", "wechat_algo_data1_mini"), "ali-ccp": _shared("format-samples"),
    "byte-rec": _shared("format-samples"), "yidian": _shared("format-samples"),
}  # fmt: skip


def test_every_format_has_a_log_here() -> None:
    assert set(FORMATS) == {*WRITTEN, *SHARED}


@pytest.mark.parametrize("name", WRITTEN)
def test_loading_a_written_log_twice_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    _twice(name, WRITTEN[name](tmp_path / "in", None), tmp_path / "ws")


@pytest.mark.data
@pytest.mark.parametrize("name", SHARED)
def test_loading_a_published_log_twice_gives_the_same_bytes(name: str, shared_data: Path, tmp_path: Path) -> None:
    _twice(name, SHARED[name](tmp_path, shared_data), tmp_path / "ws")


def _twice(name: str, path: Path, root: Path) -> None:
    report = SOURCES[name](path, Workspace(root))
    before = everything(root)
    assert SOURCES[name](path, Workspace(root)) == report
    assert everything(root) == before
    assert report["tables"]["impressions"] and report["tables"]["actions"] and report["lacks"]
    shown = Workspace(root).lake.read(TABLES["impressions"])
    posts = Workspace(root).lake.read(TABLES["posts"])
    created = dict(zip(posts["post_id"].to_pylist(), posts["known_at"].to_pylist()))
    # Whatever was derived, nothing is shown before it is known to be there.
    assert all(created[post] < at for post, at in zip(shown["post_id"].to_pylist(), shown["shown_at"].to_pylist()))


def test_kuairand_keeps_its_two_policies_apart_and_gives_the_random_one_its_propensity(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "ws")
    report = SOURCES["kuairand"](WRITTEN["kuairand"](tmp_path / "in", None), workspace)
    shown = rows(workspace, "impressions")
    assert Counter((row["policy"], row["propensity"]) for row in shown) == {
        ("standard", None): 52,
        ("random", 1 / 7583): 12,
    }
    assert "propensities of some impressions" in report["lacks"] and not workspace.dataset().has_propensities
    # Both videos of a page bear one moment: one request of two posts.
    assert Counter(row["slate_size"] for row in rows(workspace, "requests")) == {2: 32}
    assert Counter(row["kind"] for row in rows(workspace, "actions")) == {
        "click": 32,
        "like": 16,
        "hide": 16,
        "dwell": 32,
    }
    assert {row["value"] for row in rows(workspace, "actions") if row["kind"] == "dwell"} == {5.332}
    posts = {row["post_id"]: row for row in rows(workspace, "posts")}
    assert (
        posts[20]["author_id"] == 90 and to_datetime(posts[20]["created_at"]).isoformat() == "2022-03-31T16:00:00+00:00"
    )
    assert {row["author_id"] for row in shown if row["post_id"] == 21} == {91}
    assert (
        dict(next(row for row in rows(workspace, "users") if row["user_id"] == 1)["attributes"])["is_video_author"]
        == "1"
    )


def test_mind_gives_an_impression_for_each_candidate_and_a_click_for_each_one_marked(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "ws")
    report = SOURCES["mind"](WRITTEN["mind"](tmp_path / "in", None), workspace)
    news, users = foreign_of(workspace, "post"), foreign_of(workspace, "user")
    requests = rows(workspace, "requests")
    assert len(requests) == 28 and report["rejected_rows"] == 0  # both parts count their requests from 1
    first = requests[0]
    assert [news[post] for post in first["candidates"]] == ["N1", "N2", "N4"] and users[first["user_id"]] == "U1"
    assert to_datetime(first["requested_at"]).isoformat() == "2019-11-09T08:55:22+00:00"
    acted = rows(workspace, "actions")
    assert len(acted) == 28 and {news[row["post_id"]] for row in acted} == {"N2"}
    assert {row["request_id"] for row in acted} == {row["request_id"] for row in requests}
    assert {row["text"] for row in rows(workspace, "posts")} == {f'A "title" {n}' for n in range(1, 6)}


def test_twitter_gives_tweets_engagements_at_their_own_moments_and_the_follow_graph(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "ws")
    report = SOURCES["recsys-2020"](WRITTEN["recsys-2020"](tmp_path / "in", None), workspace)
    acted = rows(workspace, "actions")
    assert Counter(row["kind"] for row in acted) == {"share": 30, "like": 30}
    posts = {row["post_id"]: row for row in rows(workspace, "posts")}
    assert {row["occurred_at"] - posts[row["post_id"]]["created_at"] for row in acted} == {60 * SECOND, 30 * SECOND}
    assert all(
        row["shown_at"] == posts[row["post_id"]]["created_at"] + SECOND for row in rows(workspace, "impressions")
    )
    users = foreign_of(workspace, "user")
    follows = {(users[row["user_id"]], users[row["friend_id"]]) for row in rows(workspace, "friendships")}
    assert follows == {(f"A{n}", "R0") for n in range(5)}
    assert "friendships" not in report["lacks"]


@pytest.mark.data
def test_open_bandit_keeps_policies_positions_and_propensities_and_the_published_click_rates(
    shared_data: Path, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path / "ws")
    report = SOURCES["open-bandit"](SHARED["open-bandit"](tmp_path, shared_data), workspace)
    shown = workspace.lake.read(TABLES["impressions"]).to_pandas()
    assert len(shown) == 60_000 and report["rejected_rows"] == 0 and workspace.dataset().has_propensities
    assert set(shown["position"]) == {0, 1, 2} and shown["propensity"].between(0, 1, inclusive="right").all()
    posts = foreign_of(workspace, "post")
    clicked = set(workspace.lake.read(TABLES["actions"])["request_id"].to_pylist())
    shown["campaign"] = [posts[post].split("/")[0] for post in shown["post_id"]]
    shown["click"] = shown["request_id"].isin(clicked)
    rates = shown.groupby(["policy", "campaign"])["click"].mean()
    published = {
        "random": {"all": 0.0038, "men": 0.0046, "women": 0.0046},
        "bts": {"all": 0.0042, "men": 0.0069, "women": 0.0046},
    }
    for policy, campaigns in published.items():
        for campaign, rate in campaigns.items():
            assert rates[policy, campaign] == pytest.approx(rate, abs=1e-12)
    # The random policy shows each item of a campaign alike: 80, 34 and 46 of them.
    uniform = shown[shown["policy"] == "random"].groupby("campaign")["propensity"].mean()
    assert np.allclose([uniform[name] * count for name, count in (("all", 80), ("men", 34), ("women", 46))], 1.0)


@pytest.mark.data
def test_kuairand_likes_and_hates_have_the_published_rates_and_name_what_they_are_not(
    shared_data: Path, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path / "ws")
    report = SOURCES["kuairand27k-likehate"](SHARED["kuairand27k-likehate"](tmp_path, shared_data), workspace)
    assert report["files"] == [{"file": "processed_standard_kcore_15.tsv", "read": 41_828, "kept": 41_704,
                                "rejected": {"the same impressions row as an earlier line": 124}}]  # fmt: skip
    acted = Counter(row["kind"] for row in rows(workspace, "actions"))
    shown = report["tables"]["impressions"]
    for kind, rate in {"click": 0.657, "comment": 0.0301, "share": 0.0078, "profile": 0.0529, "like": 0.807}.items():
        assert acted[kind] / shown == pytest.approx(rate, abs=0.002)
    assert report["ids"]["post"] == 9_359 and report["ids"]["user"] == 664 + 1  # the publisher
    assert "rates are not those of what was shown" in report["derived"]["impressions"]


@pytest.mark.data
def test_wechat_actions_come_after_everything_that_was_shown_that_day(shared_data: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "ws")
    SOURCES["wechat-channels"](SHARED["wechat-channels"](tmp_path, shared_data), workspace)
    day = 24 * HOUR
    assert {row["shown_at"] % day < 12 * HOUR for row in rows(workspace, "impressions")} == {True}
    assert {row["occurred_at"] % day >= 12 * HOUR for row in rows(workspace, "actions")} == {True}
    assert Counter(row["kind"] for row in rows(workspace, "actions"))["like"] == 19


@pytest.mark.data
def test_a_published_file_with_a_torn_line_loses_that_line_alone(shared_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(shared_data / "format-samples" / "yidian_news_sampled.csv", folder)
    file = folder / "yidian_news_sampled.csv"
    file.chmod(0o644)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:500], "499,1000\n", *lines[500:]]))
    report = SOURCES["yidian"](folder, Workspace(tmp_path / "ws"))
    assert report["files"] == [{"file": file.name, "read": 1001, "kept": 986, "rejected": {
        "the same impressions row as an earlier line": 14, "2 columns instead of 18": 1}}]  # fmt: skip
