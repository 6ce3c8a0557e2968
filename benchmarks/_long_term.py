"""What click-bait does to people over weeks, beside serving the people whom one is closest to: the same people, two policies."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contracts.clock import DAY
from contracts.tables import ACTIONS, IMPRESSIONS, REQUESTS
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, simulate

EARLY_DAYS = 4


@dataclass(frozen=True)
class Weeks:
    """Clicks per impression of the first days; of the last week the requests, the people who came, and the clicks."""

    early_clicks: float
    requests: float
    people: float
    clicks: float


def weeks(users: int, days: int, seed: int, policy: str) -> Weeks:
    """A closed loop under a policy without exploration, with satisfaction that follows what was looked at, and leaving."""
    settings = EnvironmentSettings(users=users, days=days, seed=seed, requests_per_day=1.5, policy=policy, exploration="none",
                                   satisfaction="content", leave_per_day=0.02, tie_growth=2.0)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        lake = Workspace(Path(folder)).lake
        simulate(Workspace(Path(folder)), settings)
        actions = lake.read(ACTIONS, ["kind", "occurred_at"])
        shown_at = lake.read(IMPRESSIONS, ["shown_at"])["shown_at"].to_numpy()
        requests = lake.read(REQUESTS, ["user_id", "requested_at"])
    clicked_at = actions["occurred_at"].to_numpy()[np.array(actions["kind"].to_pylist()) == "click"]
    early, late = settings.start_at + EARLY_DAYS * DAY, settings.end_at - 7 * DAY
    last = requests["user_id"].to_numpy()[requests["requested_at"].to_numpy() >= late]
    return Weeks((clicked_at < early).sum() / (shown_at < early).sum(), len(last), len(np.unique(last)),
                 float((clicked_at >= late).sum()))  # fmt: skip
