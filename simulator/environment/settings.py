"""What a run of the behaviour environment is made with."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from contracts.clock import DAY, micros
from contracts.errors import BadInput


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
    """Probability that a request's slate is a uniformly random ordering of the pool; else it is chronological."""

    def check(self) -> None:
        """`BadInput` with the first setting that cannot be simulated."""
        if self.users < 10:
            raise BadInput(f"users is {self.users}; a friend graph needs at least 10")
        if self.users > 10_000:
            raise BadInput(
                f"users is {self.users}; the environment holds all of a log in memory and takes at most 10000"
            )
        if not 1 <= self.days <= 1_000:
            raise BadInput(f"days is {self.days}; a log has 1 to 1000 days")
        if not 0 <= self.seed < 2**63:
            raise BadInput(f"seed is {self.seed}; it must lie between 0 and 2**63 - 1")
        if not 0 <= self.warmup_days < self.days:
            raise BadInput(f"warmup_days is {self.warmup_days}; it must lie between 0 and days - 1 = {self.days - 1}")
        if not 1 <= self.slate_size <= self.pool_size:
            raise BadInput(f"slate_size is {self.slate_size}; it must lie between 1 and pool_size = {self.pool_size}")
        if not 0.0 < self.epsilon <= 1.0:
            raise BadInput(f"epsilon is {self.epsilon}; it must lie above 0 and at most at 1, or posts lack support")
        if not 0.0 < self.friend_share <= 1.0:
            raise BadInput(f"friend_share is {self.friend_share}; it must lie above 0 and at most at 1")
        for name in ("live_days", "mean_friends", "posts_per_day", "requests_per_day"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.start.tzinfo is None or micros(self.start) % DAY:
            raise BadInput(f"start is {self.start.isoformat()}; it must be a UTC midnight")

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
