"""Tunes the value model on the validation window: one knob at a time, by the doubly robust estimate of its slates.

A step is taken only when it gains more than one standard error over the model so far, and the tuned model goes in force
only when its paired interval over the untuned one lies above zero. So noise alone moves nothing. Slates are the best
values in order, before reranking. The test window plays no part.

Shapes: R requests, K positions, P pool entries, F model inputs, T tasks, B resamples.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from contracts.progress import say
from contracts.tasks import TASKS
from serving.feed import ValueModel
from simulator.evaluation import LoggedData, Terms, overlap, percentile_interval, replicates, value, viewer_counts
from simulator.evaluation.estimators import ESTIMATORS
from simulator.evaluation.logged_data import deterministic_target
from simulator.replay.judgement import HEADLINE, slate_baseline
from simulator.replay.settings import ReplaySettings
from simulator.replay.window import Window

SCALES = (0.0, 0.5, 1.0, 2.0, 4.0)
TIE_EXPONENTS = (0.0, 0.25, 0.5, 1.0)
FRESHNESS_EXPONENTS = (0.0, 0.1, 0.25, 0.5)
ROUNDS = 2


@dataclass(frozen=True)
class Tuned:
    """The value model in force after tuning, and how it came about, for the report."""

    model: ValueModel
    record: dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """The validation requests ready for any value model: probabilities (P, T), inputs (P, F), reward predicted (P, K)."""

    window: Window
    log: LoggedData
    probability_PT: np.ndarray
    inputs_PF: np.ndarray
    created_at_P: np.ndarray
    allowed_P: np.ndarray
    q_PK: np.ndarray


def untuned(tasks: tuple[str, ...], why: str) -> Tuned:
    """Every task weighs its worth, and `why` nothing was tuned."""
    model = ValueModel.for_tasks(tasks)
    return Tuned(model, {"tuned": False, "sentence": why, "steps": [], "gain": None, "value_model": model.as_dict()})


def tune(scored: Scored, tasks: tuple[str, ...], settings: ReplaySettings) -> Tuned:
    """The best value model that the validation window can tell from the untuned one; else the untuned one."""
    start = ValueModel.for_tasks(tasks)
    if refusal := _overlap_refusal(scored, start):
        return untuned(tasks, f"The weights are the worth of each action; tuning was left out: {refusal}.")
    counts_BV = viewer_counts(scored.log.viewer_R, settings.resamples, np.random.default_rng([settings.seed, 2]))

    def judged(model: ValueModel) -> tuple[float, np.ndarray]:
        terms = _terms(scored, model)
        return value(terms), replicates(terms, scored.log.viewer_R, counts_BV)

    best, (best_value, best_B) = start, judged(start)
    start_value, start_B = best_value, best_B
    steps: list[dict[str, Any]] = []
    tried = 1
    for _ in range(ROUNDS):
        before = best
        for knob, options in _knobs(best, tasks):
            for option in options:
                found, found_B = judged(option)
                tried += 1
                if found - best_value > np.nanstd(found_B - best_B):
                    steps.append({"knob": knob, "value": found, "gain": found - best_value})
                    best, best_value, best_B = option, found, found_B
        if best == before:
            break
    low, high = percentile_interval(best_B - start_B, 0.9)
    gain = {"value": best_value - start_value, "low": low, "high": high, "level": 0.9, "untuned": start_value}
    keep = best != start and low > 0
    chosen = best if keep else start
    about = f"{tried} value models were compared on {scored.log.requests:,} validation requests"
    if keep:
        sentence = (f"{about}; the chosen one is worth {best_value - start_value:+.3f} per request ({low:.3f} to {high:.3f}) "
                    f"more than weighing each action by its worth: {describe(chosen)}.")  # fmt: skip
    else:
        sentence = f"{about}; none could be told from weighing each action by its worth, so that stays: {describe(chosen)}."
    say(sentence)
    return Tuned(chosen, {"tuned": keep, "sentence": sentence, "steps": steps, "gain": gain, "value_model": chosen.as_dict()})


def describe(model: ValueModel) -> str:
    """The model in words."""
    weights = ", ".join(f"{task} {weight:g}" for task, weight in model.weights.items())
    return f"{weights}, tie exponent {model.tie_exponent:g}, freshness exponent {model.freshness_exponent:g}"


def value_slates(window: Window, score_P: np.ndarray, created_at_P: np.ndarray, allowed_P: np.ndarray) -> np.ndarray:
    """Slates (R, K) of the best scores; ties go to the newer, then the larger post id; -1 beyond the pool."""
    owner_P = np.repeat(np.arange(len(window.request_R)), window.pool_size_R)
    order = np.lexsort((-window.pool_P, -created_at_P, -score_P, ~allowed_P, owner_P))
    rank_P = np.arange(len(order)) - window.pool_start_R[owner_P]
    slate_RK = np.full(window.post_RK.shape, -1, np.int64)
    taken = (rank_P < window.post_RK.shape[1]) & allowed_P[order]
    slate_RK[owner_P[taken], rank_P[taken]] = window.pool_P[order][taken]
    return np.where(window.shown_RK, slate_RK, -1)


def _knobs(model: ValueModel, tasks: tuple[str, ...]) -> Iterator[tuple[str, list[ValueModel]]]:
    worth = {task.name: task.worth for task in TASKS}
    # All tasks scaled alike is the same order of posts, so one of them stays as the unit.
    for task in tasks[1:]:
        weights = [{**model.weights, task: scale * worth[task]} for scale in SCALES]
        yield task, [replace(model, weights=one) for one in weights if one != model.weights]
    yield "tie exponent", [replace(model, tie_exponent=x) for x in TIE_EXPONENTS if x != model.tie_exponent]
    yield "freshness exponent", [replace(model, freshness_exponent=x) for x in FRESHNESS_EXPONENTS if x != model.freshness_exponent]


def _terms(scored: Scored, model: ValueModel) -> Terms:
    slate_RK = value_slates(
        scored.window, model.values(scored.probability_PT, scored.inputs_PF), scored.created_at_P, scored.allowed_P
    )
    q_RK = slate_baseline(slate_RK, scored.log, scored.q_PK, scored.window.pool_start_R, scored.window.pool_P)
    return ESTIMATORS[HEADLINE](scored.log, deterministic_target(scored.log, slate_RK, baseline_RK=q_RK))


def _overlap_refusal(scored: Scored, model: ValueModel) -> str | None:
    score_P = model.values(scored.probability_PT, scored.inputs_PF)
    slate_RK = value_slates(scored.window, score_P, scored.created_at_P, scored.allowed_P)
    return overlap(scored.log, deterministic_target(scored.log, slate_RK)).refusal
