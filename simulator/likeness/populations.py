"""The plain populations: how many friends people have, what is posted for whom and when.

Degrees come out of a friend graph in which heavy people crowd each other out, so the tail of the weights behind them is
found by drawing such graphs until their degrees spread as the log's do.

Shapes: U users, P posts, R drawn populations.
"""

import numpy as np

from contracts.clock import DAY, HOUR
from contracts.tables import POST_KINDS, VISIBILITIES
from simulator.environment.lookups import Graph
from simulator.environment.people import People, draw_people
from simulator.environment.posts import draw_posts
from simulator.environment.settings import EnvironmentSettings
from simulator.likeness.estimates import Estimate, Fit, among_worlds, share
from simulator.likeness.log import LoggedLog

DRAWS = 8
TAILS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.3, 1.7)
PASSED_ON = tuple(POST_KINDS.index(name) for name in ("share", "quote"))


def degrees(users: int, user_E: np.ndarray, friend_E: np.ndarray) -> np.ndarray:
    """People (U,) with whom each person is or was joined, in whichever direction."""
    low_E, high_E = np.minimum(user_E, friend_E), np.maximum(user_E, friend_E)
    pairs = np.unique(low_E * users + high_E)
    return np.bincount(np.concatenate([pairs // users, pairs % users]), minlength=users)


def fit_hours(log: LoggedLog, fit: Fit) -> None:
    """Share of posts and visits in each hour of the day."""
    if log.hours_made_up:
        fit.not_fitted["daily rhythm"] = (
            "the hours are no record: a rule made posts.created_at when the log was read in"
        )
        return
    late_S = log.session_at_S >= log.dataset.start + DAY  # on the first day visits find nothing and leave no trace
    hour_N = np.concatenate([log.created_at_P, log.session_at_S[late_S]]) % DAY // HOUR
    fit.methods["daily rhythm"] = "posts and beginnings of sessions by UTC hour"
    for hour, count in enumerate(np.bincount(hour_N, minlength=24)):
        fit.estimates[f"hour {hour}"] = share(int(count), len(hour_N), "share of the day", "hour_weights", hour)


def fit_kinds(log: LoggedLog, fit: Fit) -> None:
    """Shares of kinds and visibilities as logged."""
    count = len(log.author_P)
    for place, name in enumerate(POST_KINDS):
        fit.estimates[f"posts of kind {name}"] = share(
            int((log.kind_P == place).sum()), count, "share of posts", "kind_shares", place
        )
    for place, name in enumerate(VISIBILITIES):
        fit.estimates[f"posts visible to {name}"] = share(
            int((log.visibility_P == place).sum()), count, "share of posts", "visibility_shares", place
        )


def fit_graph(log: LoggedLog, settings: EnvironmentSettings, fit: Fit) -> None:
    """Friends per person and the tail of the weights behind them, by drawing populations with `settings`.

    The share of shares and quotes that find nothing to pass on, and become texts, comes from the same populations.
    """
    logged_U = degrees(log.users, log.user_E, log.friend_E)
    fit.methods["friends per person"] = "drawn friend graphs whose degrees spread as the log's"
    users = settings.users
    friends = min(float(logged_U.mean()), users / 4)
    base = settings.model_copy(update={"mean_friends": friends})

    def drawn(tail: float, seed: int) -> People:
        return draw_people(np.random.default_rng(seed), base.model_copy(update={"friend_sigma": tail}))

    def spread(people: People) -> float:
        return _spread(degrees(users, people.edges.user_E, people.edges.friend_E))

    curve = np.array([np.mean([spread(drawn(tail, seed)) for seed in (1, 2)]) for tail in TAILS])
    curve = np.maximum.accumulate(curve)
    tail = float(np.interp(_spread(logged_U), curve, TAILS))
    slope = max(
        float(np.gradient(np.interp(np.linspace(0, TAILS[-1], 171), TAILS, curve), 0.01)[int(tail * 100)]), 1e-3
    )
    worlds = [drawn(tail, 10 + draw) for draw in range(DRAWS)]
    tail_R = tail + (_spread(logged_U) - np.array([spread(people) for people in worlds])) / slope
    fit.estimates["friend tail"] = among_worlds(tail_R, "standard deviation of log weight", "friend_sigma")
    mean_R = np.array([degrees(users, one.edges.user_E, one.edges.friend_E).mean() for one in worlds])
    fit.estimates["mean friends"] = among_worlds(
        logged_U.mean() * friends / mean_R, "friends per person", "mean_friends"
    )
    _passed_on(worlds, base, fit)


def _spread(degree_U: np.ndarray) -> float:
    """Standard deviation of log(1 + degree): it tells the tail, and no single hub decides it."""
    return float(np.log1p(degree_U).std())


def _passed_on(worlds: list[People], settings: EnvironmentSettings, fit: Fit) -> None:
    """Corrects the kinds for shares and quotes that became texts."""
    rngs = [np.random.default_rng(100 + draw) for draw in range(3)]
    kinds = np.concatenate([
        draw_posts(rng, settings, people, Graph(settings.users, people.edges, people.blocks)).kind_P
        for rng, people in zip(rngs, worlds)
    ])  # fmt: skip
    names = [f"posts of kind {name}" for name in POST_KINDS]
    moved = squared = 0.0
    for place in PASSED_ON:
        one = fit.estimates[names[place]]
        made = float((kinds == place).mean()) if len(kinds) else 0.0
        found = min(made / settings.kind_shares[place], 1.0) if settings.kind_shares[place] > 0 and made > 0 else 1.0
        fit.estimates[names[place]] = _scaled(one, 1 / found)
        moved += one.value / found - one.value
        squared += ((one.high - one.low) / 2 / found) ** 2
    text = fit.estimates[names[0]]
    reach = float(np.sqrt(((text.high - text.low) / 2) ** 2 + squared))
    value = max(text.value - moved, 0.0)
    fit.estimates[names[0]] = Estimate(value, max(value - reach, 0.0), value + reach, text.unit, text.setting, 0)


def _scaled(one: Estimate, factor: float) -> Estimate:
    return Estimate(one.value * factor, one.low * factor, one.high * factor, one.unit, one.setting, one.place)
