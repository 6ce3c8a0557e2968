"""The policies that the environment brings along: orders that a log could give, and orders that only the environment can.

Shapes: N requests, M pool slots, P posts, A tasks.
"""

from dataclasses import dataclass, field

import numpy as np

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.tasks import TASKS
from simulator.environment.policy import EpsilonGreedy, Outcome, PlackettLuce, Policy, Requests, Scorer
from simulator.environment.settings import EnvironmentSettings
from simulator.environment.world import World

GAIN_A = np.maximum([task.worth for task in TASKS], 0.0)


@dataclass(frozen=True)
class Chronological:
    """Newest first: minus the age in days."""

    name: str = "chronological"

    def scores(self, requests: Requests) -> np.ndarray:
        """Scores (N, M)."""
        return (requests.created_at_NM - requests.requested_at_N[:, None]) / DAY

    def observe(self, outcome: Outcome) -> None:
        """Learns nothing."""


@dataclass(frozen=True)
class Random:
    """All posts alike; with it every kind of exploration is a uniformly random order."""

    name: str = "random"

    def scores(self, requests: Requests) -> np.ndarray:
        """Scores (N, M)."""
        return np.zeros(requests.pool_NM.shape)

    def observe(self, outcome: Outcome) -> None:
        """Learns nothing."""


@dataclass
class Popularity:
    """The logarithm of a post's worth of clicks, likes, comments and shares per impression until yesterday, smoothed."""

    first_post_id: int
    posts: int
    name: str = "popularity"
    gain_P: np.ndarray = field(init=False)
    shown_P: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.gain_P, self.shown_P = np.zeros(self.posts), np.zeros(self.posts)

    def scores(self, requests: Requests) -> np.ndarray:
        """Scores (N, M)."""
        post_NM = np.maximum(requests.pool_NM - self.first_post_id, 0)
        return np.log((self.gain_P[post_NM] + 2.0) / (self.shown_P[post_NM] + 4.0))

    def observe(self, outcome: Outcome) -> None:
        """Counts a day."""
        filled_NK = outcome.post_id_NK >= 0
        post_I = outcome.post_id_NK[filled_NK] - self.first_post_id
        self.shown_P += np.bincount(post_I, minlength=self.posts)
        self.gain_P += np.bincount(post_I, (outcome.acted_NKA @ GAIN_A)[filled_NK], self.posts)


@dataclass(frozen=True)
class Hidden:
    """Orders by what no real policy sees: "ties" by the viewer's tie to the author, "bait" by how much the post draws
    clicks that people regret."""

    name: str
    world: World

    def scores(self, requests: Requests) -> np.ndarray:
        """Scores (N, M), five times a quantity between 0 and 1."""
        latents = self.world.latents
        post_NM = np.maximum(requests.pool_NM - latents.post_ids_P[0], 0)
        if self.name == "bait":
            return 5.0 * latents.bait_P[post_NM]
        user_NM = np.broadcast_to(requests.user_id_N[:, None] - latents.user_ids_U[0], post_NM.shape)
        return 5.0 * latents.ties(user_NM, latents.author_P[post_NM], requests.requested_at_N[:, None])[0]

    def observe(self, outcome: Outcome) -> None:
        """Learns nothing: it knows."""


POLICY_NAMES = ("chronological", "popularity", "random", "ties", "bait")


def policy_of(settings: EnvironmentSettings, world: World) -> Policy:
    """The policy that the settings name, with their exploration."""
    scorer: Scorer
    match settings.policy:
        case "chronological":
            scorer = Chronological()
        case "popularity":
            scorer = Popularity(int(world.latents.post_ids_P[0]), len(world.latents.post_ids_P))
        case "random":
            return _Uniform(Random(), 1.0)
        case _:
            scorer = Hidden(settings.policy, world)
    if settings.exploration == "plackett-luce":
        return PlackettLuce(scorer, settings.temperature)
    return EpsilonGreedy(scorer, settings.epsilon if settings.exploration == "epsilon" else 0.0)


class _Uniform(EpsilonGreedy):
    """A uniformly random order, under its plain name."""

    @property
    def name(self) -> str:
        """In the log."""
        return self.scorer.name


def policy_settings(text: str) -> dict:
    """The settings that `NAME`, `NAME:EPSILON` or `NAME:pl=TEMPERATURE` stand for; `BadInput` for anything else."""
    name, _, how = text.partition(":")
    if name not in POLICY_NAMES:
        raise BadInput(
            f"there is no policy {name!r} in the environment itself; there are {', '.join(POLICY_NAMES)}. With --models the feed "
            "pipeline that serves fills the feeds"
        )
    if not how:
        return {"policy": name, "exploration": "none"}
    try:
        if how.startswith("pl="):
            return {"policy": name, "exploration": "plackett-luce", "temperature": float(how[3:])}
        return {"policy": name, "exploration": "epsilon", "epsilon": float(how)}
    except ValueError:
        raise BadInput(f"policy {text!r} is not NAME, NAME:EPSILON or NAME:pl=TEMPERATURE") from None
