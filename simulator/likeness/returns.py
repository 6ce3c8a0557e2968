"""When people come back and how much they write: rates with a heavy tail, requests a session, the pull of satisfaction.

Counts of a person are Poisson given their rate; rates are scale x min(exp(sigma z), cap), z normal, as the environment
draws them. sigma, the scale and the pull of satisfaction are found by maximum likelihood, the rate integrated out, with
intervals from the observed information. Satisfaction is what the environment's rule makes
of what the person was shown and did: a moving average that the log determines.

Shapes: U users, D days, Q quadrature points, N requests.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from contracts.clock import DAY
from contracts.tasks import TASKS
from simulator.environment.visits import satisfaction_after
from simulator.likeness.estimates import Estimate, Fit, Z
from simulator.likeness.log import LoggedLog

REACH, STEP = 5.0, 0.05
"""The normal z is integrated from -REACH to REACH: busy people pin their rate down so well that few points would miss it."""
MOST_PEOPLE = 20_000
"""People whose counts are fitted; of more, every n-th."""
HIGHEST = 12.0
"""Nobody's rate is above so many times the typical one (requests), or so many a day (posts)."""


def fit_posting(log: LoggedLog, fit: Fit) -> None:
    """Posts per person and day, and the tail of that rate."""
    days_U = _exposure(log, 0)
    kept_U = _some(days_U > 0.5)
    counts_U = np.bincount(log.author_P, minlength=log.users)[kept_U].astype(np.float64)
    days_U, (z_Q, weight_Q) = days_U[kept_U], _normal()
    fit.methods["posts per author"] = "Poisson counts with log-normal rates, maximum likelihood"

    def log_likelihood(free: np.ndarray) -> tuple[float, np.ndarray]:
        log_rate_Q = free[0] + free[1] * z_Q
        below_Q = log_rate_Q < np.log(HIGHEST)
        value, slope_Q, _ = _poisson_mixture(counts_U, days_U, np.minimum(log_rate_Q, np.log(HIGHEST)), weight_Q)
        return value, np.array([slope_Q @ below_Q, slope_Q @ (below_Q * z_Q)])

    found, covariance = _maximum(log_likelihood, np.array([np.log(counts_U.sum() / days_U.sum()) - 0.5, 1.0]))
    fit.estimates["posting tail"] = Estimate.around(
        found[1], Z * _error(covariance, 1), "standard deviation of log rate", "posting_sigma"
    )
    fit.estimates["posts per day"] = _mean_rate(counts_U, days_U, 1.0, "posts per person and day", "posts_per_day")


def fit_returns(log: LoggedLog, fit: Fit) -> None:
    """Sessions: requests in each, how many a day, the tail of that rate, and how satisfaction moves it."""
    if not len(log.session_user_S):
        fit.not_fitted["return times"] = log.absent["sessions"]
        return
    fit.methods["return times"] = "Poisson sessions a day with log-normal rates, maximum likelihood"
    requests_S = log.session_requests_S
    length, error = float(requests_S.mean()), float(requests_S.std() / np.sqrt(len(requests_S)))
    fit.estimates["end of a session"] = Estimate(
        1 / length, 1 / (length + Z * error), min(1 / max(length - Z * error, 1e-9), 1.0), "probability after each request",
        "session_end",
    )  # fmt: skip
    satisfaction_UD = _satisfaction(log)
    if satisfaction_UD is None:
        fit.not_fitted["pull of satisfaction"] = "it takes impressions with actions, over more than two days"
    # On the first day hardly anything is there to be shown, so visits leave no trace in the log.
    first = 1 if log.days > 2 else 0
    visits_UD = _visits(log)[:, first:]
    open_UD = np.clip((log.dataset.start - log.registered_at_U[:, None]) / DAY + np.arange(1, log.days + 1), 0, 1)[
        :, first:
    ]
    kept_U = _some(open_UD.sum(axis=1) > 0.5)
    visits_UD, open_UD = visits_UD[kept_U], open_UD[kept_U]
    moved_UD = None if satisfaction_UD is None else satisfaction_UD[kept_U, first:]
    total_U = visits_UD.sum(axis=1)
    moved_by_visits = 0.0 if moved_UD is None else float((visits_UD * moved_UD).sum())
    z_Q, weight_Q = _normal()

    def log_likelihood(free: np.ndarray) -> tuple[float, np.ndarray]:
        below_Q = free[1] * z_Q < np.log(HIGHEST)
        log_rate_Q = free[0] + np.minimum(free[1] * z_Q, np.log(HIGHEST))
        held_UD = open_UD if moved_UD is None else open_UD * np.exp(free[2] * moved_UD)
        value, slope_Q, mean_U = _poisson_mixture(total_U, held_UD.sum(axis=1), log_rate_Q, weight_Q)
        slopes = [slope_Q.sum(), slope_Q @ (below_Q * z_Q)]
        if moved_UD is None:
            return value, np.array(slopes)
        pull = moved_by_visits - mean_U @ (held_UD * moved_UD).sum(axis=1)
        return value + free[2] * moved_by_visits, np.array([*slopes, pull])

    begin = np.array([np.log(total_U.sum() / open_UD.sum()) - 0.3, 0.8] + ([] if moved_UD is None else [0.1]))
    found, covariance = _maximum(log_likelihood, begin)
    fit.estimates["return tail"] = Estimate.around(
        found[1], Z * _error(covariance, 1), "standard deviation of log rate", "request_sigma"
    )
    days_U = open_UD.sum(axis=1)
    if moved_UD is not None:
        fit.estimates["pull of satisfaction"] = Estimate.around(
            found[2], Z * _error(covariance, 2), "log rate per unit of satisfaction", "return_pull"
        )
        days_U = (open_UD * np.exp(max(found[2], 0.0) * moved_UD)).sum(axis=1)
    fit.estimates["requests per day"] = _mean_rate(total_U, days_U, length, "requests per person and day", "requests_per_day",
                                                   float(np.square(requests_S).mean() / length**2))  # fmt: skip


def _exposure(log: LoggedLog, first: int) -> np.ndarray:
    """Days (U,) of the log after its first `first` on which each person was registered."""
    begin = np.maximum(log.registered_at_U, log.dataset.start + first * DAY)
    return np.maximum(log.dataset.end - begin, 0) / DAY


def _visits(log: LoggedLog) -> np.ndarray:
    """Sessions (U, D) of each person and day."""
    day_S = np.clip((log.session_at_S - log.dataset.start) // DAY, 0, log.days - 1)
    return np.bincount(log.session_user_S * log.days + day_S, minlength=log.users * log.days).reshape(
        log.users, log.days
    )


def _satisfaction(log: LoggedLog) -> np.ndarray | None:
    """Satisfaction (U, D) with which each person begins each day; None where the log does not tell."""
    shown = log.impressions
    if shown is None or not shown.acted_IA.any() or log.days <= 2:
        return None
    first_N = np.flatnonzero(np.diff(shown.request_I, prepend=-1))
    reward_N = np.add.reduceat(shown.acted_IA @ np.array([task.worth for task in TASKS]), first_N)
    day_N = np.clip((shown.shown_at_I[first_N] - log.dataset.start) // DAY, 0, log.days - 1)
    viewer_N = shown.viewer_I[first_N]
    satisfaction_UD = np.zeros((log.users, log.days))
    usual: float | None = None
    for day in range(log.days - 1):
        today_N = day_N == day
        reward_U = np.bincount(viewer_N[today_N], reward_N[today_N], minlength=log.users)
        feeds_U = np.bincount(viewer_N[today_N], minlength=log.users)
        satisfaction_UD[:, day + 1], usual = satisfaction_after(satisfaction_UD[:, day], reward_U, feeds_U, usual)
    return satisfaction_UD


def _normal() -> tuple[np.ndarray, np.ndarray]:
    """Points (Q,) of a normal variable and the logarithm of their weights."""
    z_Q = np.arange(-REACH, REACH + STEP / 2, STEP)
    return z_Q, -np.square(z_Q) / 2 - logsumexp(-np.square(z_Q) / 2)


def _poisson_mixture(
    counts_U: np.ndarray, days_U: np.ndarray, log_rate_Q: np.ndarray, log_weight_Q: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Log likelihood of counts over days up to a constant, the rate a day integrated out; its slope with each log rate
    (Q,), and everybody's rate a day given their count (U,)."""
    rate_Q = np.exp(log_rate_Q)
    log_UQ = np.outer(counts_U, log_rate_Q) - np.outer(days_U, rate_Q) + log_weight_Q
    most_U1 = log_UQ.max(axis=1, keepdims=True)
    chance_UQ = np.exp(log_UQ - most_U1)
    total_U1 = chance_UQ.sum(axis=1, keepdims=True)
    chance_UQ /= total_U1
    slope_Q = counts_U @ chance_UQ - rate_Q * (days_U @ chance_UQ)
    return float((most_U1 + np.log(total_U1)).sum()), slope_Q, chance_UQ @ rate_Q


def _some(kept_U: np.ndarray) -> np.ndarray:
    """Places of at most `MOST_PEOPLE` of the people in `kept_U`, evenly spread."""
    at = np.flatnonzero(kept_U)
    return at[:: len(at) // MOST_PEOPLE + 1]


def _maximum(
    log_likelihood: Callable[[np.ndarray], tuple[float, np.ndarray]], begin: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where the likelihood (with its slopes) is largest, and the inverse of the observed information there."""
    limits = [(-15.0, 8.0), (0.0, 3.0), (-5.0, 5.0)][: len(begin)]

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        value, slopes = log_likelihood(free)
        return -value, -slopes

    found = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=limits, options={"ftol": 1e-13, "gtol": 1e-5}).x
    step = 1e-3
    hessian = np.stack(
        [(loss(found + off)[1] - loss(found - off)[1]) / (2 * step) for off in step * np.eye(len(found))]
    )
    return found, np.linalg.pinv((hessian + hessian.T) / 2)


def _error(covariance: np.ndarray, place: int) -> float:
    return float(np.sqrt(max(covariance[place, place], 0.0)))


def _mean_rate(
    counts_U: np.ndarray, days_U: np.ndarray, per_count: float, unit: str, setting: str, spread: float = 1.0
) -> Estimate:
    """Mean rate of these very people: counts over days. `spread`: mean square over squared mean of what a count holds.

    The error has the counts' own noise and that of people who were there for a part of the log only.
    """
    mean = counts_U.sum() / days_U.sum()
    extra = np.square(counts_U / days_U - mean).sum() * days_U.var() / days_U.sum() ** 2
    error = np.sqrt(spread * mean / days_U.sum() + extra)
    return Estimate.around(mean * per_count, Z * error * per_count, unit, setting)
