"""Who opens the feed when, and how what they find there moves when they come back.

Shapes: N requests, S sessions, U users.
"""

import numpy as np

from contracts.clock import DAY, MINUTE, SECOND
from simulator.environment.lookups import rank_within
from simulator.environment.posts import rhythm
from simulator.environment.settings import EnvironmentSettings

MOST_REQUESTS_A_DAY = 24
SATISFACTION_MEMORY = 0.85
USUAL_CONTENTMENT, CONTENTMENT_SPREAD = 0.15, 0.15
"""Contentment per viewed post that leaves satisfaction at 0, and how far from it moves satisfaction by most of its range."""


class Visitors:
    """People's pace and their hidden satisfaction (U,), which starts at 0 and moves once a day."""

    def __init__(self, rng: np.random.Generator, settings: EnvironmentSettings, registered_at_U: np.ndarray):
        self.settings, self._registered_at_U = settings, registered_at_U
        rate_U = np.minimum(rng.lognormal(0.0, settings.request_sigma, settings.users), 12.0)
        self._rate_U = rate_U * (settings.requests_per_day / rate_U.mean())
        self.satisfaction_U = np.zeros(settings.users)
        self.left_U = np.zeros(settings.users, bool)
        self._usual: float | None = None
        self._sessions = 0

    def requests_of_day(self, rng: np.random.Generator, day_at: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Viewer (N,), moment (N,) and session number (N,) of the day's requests, ordered by viewer and moment.

        Sessions are Poisson; each holds one request or more, some minutes apart. Their numbers go on from day to day.
        """
        settings = self.settings
        rate_U = self._rate_U * np.exp(settings.return_pull * self.satisfaction_U) * ~self.left_U
        # Rounded, since 1.45 requests a session is what the demo's log was drawn with.
        mean_length = round(1.0 / settings.session_end, 2)
        session_user_S = np.repeat(np.arange(len(rate_U)), rng.poisson(rate_U / mean_length))
        begin_S = day_at + rhythm(rng, len(session_user_S), settings.hour_weights)
        length_S = rng.geometric(settings.session_end, len(session_user_S))
        session_N = np.repeat(np.arange(len(session_user_S)), length_S)
        pause_N = SECOND * 20 + rng.exponential(4 * MINUTE, len(session_N)).astype(np.int64)
        gap_N = np.where(rank_within(session_N) == 0, 0, pause_N)
        total_N = np.cumsum(gap_N)
        first_S = np.cumsum(length_S) - length_S
        at_N = begin_S[session_N] + total_N - total_N[first_S[session_N]] if len(session_N) else np.zeros(0, np.int64)
        user_N = session_user_S[session_N]
        last_at = min(day_at + DAY, settings.end_at - MINUTE)
        kept_N = (at_N < last_at) & (at_N > self._registered_at_U[user_N] + MINUTE)
        user_N, at_N, session_N = user_N[kept_N], at_N[kept_N], session_N[kept_N]
        order_N = np.lexsort((session_N, at_N, user_N))
        user_N, at_N, session_N = user_N[order_N], at_N[order_N], session_N[order_N]
        few_N = rank_within(user_N) < MOST_REQUESTS_A_DAY
        user_N, at_N, session_N = user_N[few_N], at_N[few_N], session_N[few_N] + self._sessions
        self._sessions = int(session_N.max()) + 1 if len(session_N) else self._sessions
        return user_N, at_N, session_N

    def end_day(self, rng: np.random.Generator, reward_U: np.ndarray, shown_U: np.ndarray) -> None:
        """Moves satisfaction by the day's reward (U,), or contentment, summed over `shown_U` feeds, or viewed posts.

        Then those who came may leave, the likelier the less satisfied they are.
        """
        settings = self.settings
        if settings.satisfaction == "content":
            self.satisfaction_U = satisfaction_by_content(self.satisfaction_U, reward_U, shown_U)
        else:
            self.satisfaction_U, self._usual = satisfaction_after(self.satisfaction_U, reward_U, shown_U, self._usual)
        if settings.leave_per_day:
            chance_U = settings.leave_per_day * np.exp(-settings.leave_pull * self.satisfaction_U)
            self.left_U |= (rng.random(settings.users) < chance_U) & (shown_U > 0)


def satisfaction_by_content(before_U: np.ndarray, felt_U: np.ndarray, viewed_U: np.ndarray) -> np.ndarray:
    """Satisfaction (U,) after a day: it moves towards tanh((contentment per viewed post - usual) / spread)."""
    mean_U = felt_U / np.maximum(viewed_U, 1)
    goal_U = np.tanh((mean_U - USUAL_CONTENTMENT) / CONTENTMENT_SPREAD)
    moved_U = SATISFACTION_MEMORY * before_U + (1 - SATISFACTION_MEMORY) * goal_U
    return np.where(viewed_U > 0, moved_U, before_U)


def satisfaction_after(
    before_U: np.ndarray, reward_U: np.ndarray, shown_U: np.ndarray, usual: float | None
) -> tuple[np.ndarray, float]:
    """Satisfaction (U,) after a day, and the reward per feed that is now usual (`None`: no day has passed).

    It moves towards tanh((own reward per feed - usual) / 4) of who came, and stays as it was of who did not.
    """
    came_U = shown_U > 0
    if not came_U.any():
        return before_U, usual or 0.0
    mean_U = reward_U / np.maximum(shown_U, 1)
    today = float(mean_U[came_U].mean())
    usual = today if usual is None else 0.9 * usual + 0.1 * today
    moved_U = SATISFACTION_MEMORY * before_U + (1 - SATISFACTION_MEMORY) * np.tanh((mean_U - usual) / 4.0)
    return np.where(came_U, moved_U, before_U), usual
