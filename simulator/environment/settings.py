"""What a run of the behaviour environment is made with."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.clock import DAY, micros
from contracts.errors import BadInput
from contracts.splits import TimeSplit, split_log
from contracts.tables import POST_KINDS, VISIBILITIES
from contracts.tasks import TASK_NAMES

MOST_USERS = 5_000_000
"""So many people's posts of 1000 days still have their own key for every person."""
MOST_DAYS = 1_000
WHOLE_LOG_USERS = 10_000
"""Logs of more people are drawn and written day by day."""
ATTRIBUTION_US = DAY
"""An action counts for an impression when it comes within this time, microseconds."""
FIRST_DAY, LAST_DAY = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""A log lies between them: clocks, calendars and file names of all rooms can tell its moments."""
ABOVE_0 = {
    "live_days": 36_500, "mean_friends": 5_000, "posts_per_day": 1_000, "requests_per_day": 1_000, "friend_share": 1,
    "epsilon": 1, "session_end": 1, "tie_half_life_days": 36_500,
}  # fmt: skip
"""Setting that must be above 0 -> the most that it can be."""
BETWEEN = {
    "pool_size": (1, 10_000), "temperature": (0.001, 1_000_000), "examination_power": (0, 100), "request_sigma": (0, 10),
    "return_pull": (0, 10), "posting_sigma": (0, 10), "friend_sigma": (0, 10), "tie_growth": (0, 100),
    "leave_pull": (0, 100), "persistence": (0, 1), "stop_after_action": (0, 1), "leave_per_day": (0, 1),
    "newcomer_share": (0, 1), "new_friend_share": (0, 1),
}  # fmt: skip
"""Setting -> the least and the most that it can be. Beyond them a rate, a weight or a moment no longer fits a number."""
LISTS = {
    "life_hours": (len(POST_KINDS), 1e-6, 1e9), "task_levels": (len(TASK_NAMES), 0, 1e6),
    "tie_slopes": (len(TASK_NAMES), -100, 100), "kind_shares": (len(POST_KINDS), 0, 1),
    "visibility_shares": (len(VISIBILITIES), 0, 1), "hour_weights": (24, 0, 1e6),
}  # fmt: skip
"""Setting that is a list -> how many values it takes, the least and the most that each can be."""


class EnvironmentSettings(BaseModel):
    """Sizes and rules of one simulated log; the defaults make the demo's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    users: int = 2000
    """People, including those who register during the log."""
    days: int = 28
    """Length of the log in days."""
    seed: int = 7
    """Seed of the one random generator: the same settings and seed give the same bytes."""
    start: datetime = datetime.fromisoformat("2024-05-06T00:00:00+00:00")
    """First moment of the log, at a UTC midnight."""
    warmup_days: int = 7
    """Days at the start that feed features but give no samples."""
    live_days: float = 6.0
    """How long a post stays a candidate, in days."""
    mean_friends: float = 25.0
    """Mean number of friends of a person."""
    posts_per_day: float = 0.7
    """Mean posts per person and day."""
    requests_per_day: float = 1.1
    """Mean feed requests per person and day, before satisfaction moves it."""
    pool_size: int = 24
    """Largest number of candidates of a request."""
    friend_share: float = 0.8
    """Share of the pool that is kept for friends' posts when there are enough."""
    slate_size: int = 8
    """Posts shown per request."""
    epsilon: float = 0.6
    """Under exploration "epsilon": probability that a request's slate is a uniformly random ordering of the pool."""
    policy: Literal["chronological", "popularity", "random", "ties", "bait"] = "chronological"
    """What orders the pools: age, engagement until yesterday, chance, hidden tie strength, hidden bait."""
    exploration: Literal["epsilon", "plackett-luce", "none"] = "epsilon"
    """How the policy's order is varied: a random slate now and then, a draw by score, or not at all (no support then)."""
    temperature: float = 1.0
    """Under exploration "plackett-luce": posts are drawn with weight exp(score / temperature)."""
    examination_power: float = 0.4
    """Position k (from 0) is looked at with probability (1 + k) ** -examination_power, under "position"."""
    examination: Literal["position", "cascade"] = "position"
    """Whether positions are looked at independently, or from the top down until something ends the scan."""
    persistence: float = 0.95
    """Under "cascade": probability that the next position is looked at after a post that was not acted on."""
    stop_after_action: float = 0.3
    """Under "cascade": probability that a click, like, comment or share ends the scan."""
    life_hours: tuple[float, ...] = (8.0, 30.0, 90.0, 36.0, 10.0, 120.0)
    """Half-life of interest per post kind, in the order of POST_KINDS, in hours."""
    task_levels: tuple[float, ...] = (1.0,) * len(TASK_NAMES)
    """Factor on the probability of each task, in the order of TASK_NAMES."""
    tie_slopes: tuple[float, ...] = (0.0,) * len(TASK_NAMES)
    """Each task's probability is multiplied by exp(slope x tie ** 1.2)."""
    request_sigma: float = 0.8
    """Standard deviation of the logarithm of people's request rates: their heavy tail."""
    session_end: float = 0.69
    """Probability that a request is the last of its session."""
    return_pull: float = 0.4
    """How strongly satisfaction moves the rate of requests: rate x exp(return_pull x satisfaction)."""
    posting_sigma: float = 1.0
    """Standard deviation of the logarithm of people's posting rates."""
    friend_sigma: float = 0.75
    """Standard deviation of the logarithm of the weight with which people are drawn as friends: the tail of degrees."""
    kind_shares: tuple[float, ...] = (0.34, 0.28, 0.11, 0.09, 0.07, 0.11)
    """Share of each post kind, in the order of POST_KINDS."""
    visibility_shares: tuple[float, ...] = (0.55, 0.38, 0.04, 0.03)
    """Share of each visibility, in the order of VISIBILITIES."""
    hour_weights: tuple[float, ...] = (2, 1, 1, 1, 1, 2, 4, 6, 7, 6, 6, 6, 8, 7, 6, 6, 6, 7, 9, 10, 11, 10, 8, 4)
    """How busy each UTC hour is, for posts and visits."""

    tie_growth: float = 0.0
    """How far contact moves the logit of a tie, from no contact to all there can be; 0: ties stay as they are."""
    tie_half_life_days: float = 14.0
    """Days in which the contact that keeps a tie strong halves."""
    satisfaction: Literal["reward", "content"] = "reward"
    """What satisfaction follows: the reward per feed against what is usual in this log, or, against a fixed measure, how
    close, fitting and free of bait the viewed posts were. Only the latter shows what a policy does to everybody."""
    leave_per_day: float = 0.0
    """Probability that somebody of neutral satisfaction leaves for good after a day with feeds."""
    leave_pull: float = 2.0
    """How strongly satisfaction moves it: leave_per_day x exp(-leave_pull x satisfaction)."""
    daily: bool = False
    """Whether a log of few people is drawn and written day by day too, as a policy that reads the lake needs it."""
    newcomer_share: float = 0.08
    """Share of people who register during the first three quarters of the log."""
    new_friend_share: float = 0.04
    """Share of friendships between older accounts that begin during the log."""

    def check(self) -> None:
        """`BadInput` with the first setting that cannot be simulated."""
        if self.users < 10:
            raise BadInput(f"users is {self.users}; a friend graph needs at least 10")
        if self.users > MOST_USERS:
            raise BadInput(f"users is {self.users}; the environment takes at most {MOST_USERS}")
        if not 1 <= self.days <= MOST_DAYS:
            raise BadInput(f"days is {self.days}; a log has 1 to {MOST_DAYS} days")
        if not 0 <= self.seed < 2**63:
            raise BadInput(f"seed is {self.seed}; it must lie between 0 and 2**63 - 1")
        if not 0 <= self.warmup_days < self.days:
            raise BadInput(
                f"warmup_days is {self.warmup_days}; it must lie between 0 and days - 1 = {self.days - 1}: simulate more "
                f"days, or fewer of warm-up (--set warmup_days=)"
            )
        for name, most in ABOVE_0.items():
            if not 0.0 < getattr(self, name) <= most:
                raise BadInput(f"{name} is {getattr(self, name)}; it must lie above 0 and at most at {most}")
        for name, (least, most) in BETWEEN.items():
            if not least <= getattr(self, name) <= most:
                raise BadInput(f"{name} is {getattr(self, name)}; it must lie between {least} and {most}")
        if not 1 <= self.slate_size <= self.pool_size:
            raise BadInput(f"slate_size is {self.slate_size}; it must lie between 1 and pool_size = {self.pool_size}")
        self._check_lists()
        if self.start.tzinfo is None or micros(self.start) % DAY:
            raise BadInput(f"start is {self.start.isoformat()}; it must be a UTC midnight, as 2025-01-06T00:00:00Z")
        if not micros(FIRST_DAY) <= self.start_at < self.end_at <= micros(LAST_DAY):
            raise BadInput(
                f"start is {self.start.isoformat()}; all {self.days} days must lie between {FIRST_DAY:%Y-%m-%d} and "
                f"{LAST_DAY:%Y-%m-%d}"
            )

    def _check_lists(self) -> None:
        for name, (size, least, most) in LISTS.items():
            values = getattr(self, name)
            if len(values) != size or not np.isfinite(values).all():
                raise BadInput(f"{name} has {len(values)} values; it takes {size} finite numbers")
            if min(values) < least:
                raise BadInput(f"{name} holds {min(values)}; that is too small, the least is {least}")
            if max(values) > most:
                raise BadInput(f"{name} holds {max(values)}; that is too large, the most is {most}")
        for name in ("kind_shares", "visibility_shares"):
            if abs(sum(getattr(self, name)) - 1.0) > 1e-6:
                raise BadInput(f"{name} sum to {sum(getattr(self, name)):.6f}; shares must sum to 1")
        if not sum(self.hour_weights) > 0:
            raise BadInput("hour_weights are all 0; at least one hour must be above 0")

    def split(self) -> TimeSplit:
        """The windows of the log; `BadInput` when too few days are left for them after the warm-up."""
        try:
            return split_log(self.start_at + self.warmup_days * DAY, self.end_at, ATTRIBUTION_US)
        except BadInput as error:
            raise BadInput(
                f"days is {self.days}, of which the first warmup_days = {self.warmup_days} give no samples: {error}"
            ) from None

    @property
    def by_day(self) -> bool:
        """Whether the log is drawn and written day by day: its days need not fit into memory together, and visits outside
        feeds follow the ties of their day."""
        return self.daily or self.users > WHOLE_LOG_USERS or self.tie_growth > 0

    @property
    def start_at(self) -> int:
        """The log's first moment, UTC microseconds."""
        return micros(self.start)

    @property
    def end_at(self) -> int:
        """The moment just after the log, UTC microseconds."""
        return self.start_at + self.days * DAY

    @property
    def live_us(self) -> int:
        """How long a post stays a candidate, microseconds."""
        return int(self.live_days * DAY)


def assigned(texts: Sequence[str]) -> dict[str, Any]:
    """The settings that texts of the form NAME=VALUE stand for (lists as JSON); `BadInput` names the first that is none."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in EnvironmentSettings.model_fields:
            raise BadInput(
                f"{text!r} sets nothing; it must be NAME=VALUE with one of: {', '.join(EnvironmentSettings.model_fields)}"
            )
        if name in found:
            raise BadInput(f"{name} is set twice, to {found[name]} and to {value}: set it once")
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            read = value
        try:
            EnvironmentSettings(**{name: read})
        except ValidationError as error:
            raise BadInput(f"{name} is {value}: {error.errors()[0]['msg']}") from None
        found[name] = read
    return found
