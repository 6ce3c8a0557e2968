"""What no log can be made with is refused before anything is written, and the log's description says what filled its feeds."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from contracts.errors import BadInput
from contracts.workspace import Workspace
from feedloop.cli import main
from simulator.environment import EnvironmentSettings, simulate
from simulator.environment.settings import ABOVE_0, BETWEEN, LISTS, assigned

WRONG = [
    *((name, value) for name in ABOVE_0 for value in (0.0, -1.0, float("nan"), float("inf"), 1e300)),
    *((name, value) for name in BETWEEN if name != "pool_size" for value in (-1.0, float("nan"), float("inf"), 1e300)),
    ("pool_size", 10**12), ("slate_size", 10**12), ("users", 10**30), ("days", 10**30), ("seed", 10**30), ("warmup_days", 10**30),
    *((name, (value,) * size) for name, (size, _, _) in LISTS.items() for value in (float("inf"), float("nan"), -1e300, 1e300)),
    *(("start", f"{day}T00:00:00Z") for day in ("0001-01-01", "1969-12-31", "2199-12-20", "9999-12-31")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_number_that_no_log_can_have_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"^{name} "):
        EnvironmentSettings(**{name: value}).check()


@pytest.mark.parametrize("text", ["mean_friends=1" + "0" * 400, "live_days=" + "[" * 99_999, "seed=1e400"])
def test_a_number_that_no_machine_can_read_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(BadInput, match=f"^{text.split('=')[0]} is "):
        EnvironmentSettings(**assigned([text])).check()


MODELS = ("--models", "nowhere")
CONTRADICTIONS = {
    "users": (("--set", "users=80", "--users", "60"), "--users 60 and --set users=80"),
    "seed": (("--set", "seed=1", "--seed", "2"), "--seed 2 and --set seed=1"),
    "twice": (("--set", "seed=1", "--set", "seed=2"), "seed is set twice, to 1 and to 2"),
    "days": (("--days", "10"), "days is 10, of which the first warmup_days = 7 give no samples: a log of 3.00 days"),
    "own policy": ((*MODELS, "--set", "daily=false"), "--set daily=false and --models cannot go together"),
} | {
    f"{of[0]} {name}": ((*of, "--set", f"{name}={value}"), f"--set {name}={value} and {' '.join(of[:said])} cannot go")
    for of, said in ((MODELS, 1), (("--policy", "chronological:0.5"), 2))
    for name, value in (("policy", "bait"), ("epsilon", 0.2), ("temperature", 3), ("exploration", "plackett-luce"))
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_options_that_contradict_each_other_are_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    options, words = CONTRADICTIONS[name]
    answer = CliRunner().invoke(main, ["simulate", *options, "--workspace", str(tmp_path / "w"), "--json"])
    assert answer.exit_code == 2 and words in json.loads(answer.stdout)["error"], answer.output
    assert not (tmp_path / "w").exists()


def test_a_seed_that_is_set_is_the_seed_of_the_log(tmp_path: Path) -> None:
    sizes = ["--users", "40", "--days", "12", "--set", "mean_friends=8", "--set", "seed=3"]
    assert CliRunner().invoke(main, ["simulate", *sizes, "--workspace", str(tmp_path)]).exit_code == 0
    assert Workspace(tmp_path).dataset().settings["seed"] == 3


@pytest.mark.parametrize(
    ("policy", "recorded"),
    [
        ("chronological:0.5", {"policy": "epsilon-served-chronological", "exploration": "epsilon", "epsilon": 0.5}),
        ("chronological", {"policy": "served-chronological", "exploration": "none"}),
    ],
)
def test_a_log_says_what_filled_its_feeds(policy: str, recorded: dict, tmp_path: Path) -> None:
    simulate(Workspace(tmp_path / "models"), EnvironmentSettings(users=20, days=6, warmup_days=1, mean_friends=6))
    options = [
        "--models",
        str(tmp_path / "models"),
        "--policy",
        policy,
        "--users",
        "20",
        "--days",
        "6",
        "--set",
        "warmup_days=1",
    ]
    answer = CliRunner().invoke(main, ["simulate", *options, "--workspace", str(tmp_path / "w")])
    assert answer.exit_code == 0, answer.output
    settings = Workspace(tmp_path / "w").dataset().settings
    assert {name: settings[name] for name in recorded} == recorded and settings["daily"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"requests_per_day": 1e-300}, "were shown nothing"), ({"live_days": 1e-12}, "were shown nothing")],
)
def test_a_log_without_any_feed_is_refused(change: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words):
        simulate(Workspace(tmp_path), EnvironmentSettings(users=20, days=6, warmup_days=1, **change))
    assert not Workspace(tmp_path).dataset_path.exists()
