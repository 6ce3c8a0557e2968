"""Tunes the value model on the validation window: one knob at a time, by the doubly robust estimate of its slates.

Steps are chosen on one half of the viewers, each only when it gains more than one standard error over the model so far.
The outcome goes in force only when, on the other half, its paired interval over the untuned model lies above zero. So the
best of many noisy tries is not taken for better. Slates are the best values in order, before reranking. The test window
plays no part.

Shapes: R requests, K positions, P pool entries, F model inputs, T tasks, V viewers, B resamples.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from contracts.progress import say
from contracts.tasks import TASKS
from serving.feed import ValueModel
from simulator.evaluation import ESTIMATORS, Target, overlap, percentile_interval, replicates, viewer_counts
from simulator.evaluation.reward_regression import viewer_folds
from simulator.replay.evidence import Evidence
from simulator.replay.judgement import headline_of
from simulator.replay.settings import ReplaySettings
from simulator.replay.window import Window

SCALES = (0.0, 0.5, 1.0, 2.0, 4.0)
TIE_EXPONENTS = (0.0, 0.25, 0.5, 1.0)
FRESHNESS_EXPONENTS = (0.0, 0.1, 0.25, 0.5)
ROUNDS = 2
LEVEL = 0.9


@dataclass(frozen=True)
class Tuned:
    """The value model in force after tuning, and how it came about, for the report."""

    model: ValueModel
    record: dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """The validation requests ready for any value model: probabilities (P, T) and inputs (P, F) of every pool entry."""

    window: Window
    evidence: Evidence
    probability_PT: np.ndarray
    inputs_PF: np.ndarray
    allowed_P: np.ndarray

    def target(self, model: ValueModel) -> Target:
        """The policy that shows the best values of `model` in order."""
        score_P = model.values(self.probability_PT, self.inputs_PF)
        return self.evidence.target(value_slates(self.window, score_P, self.allowed_P))


def untuned(tasks: tuple[str, ...], why: str) -> Tuned:
    """Every task weighs its worth, and `why` nothing was tuned."""
    model = ValueModel.for_tasks(tasks)
    return Tuned(model, {"tuned": False, "sentence": why, "steps": [], "gain": None, "value_model": model.as_dict()})


def tune(scored: Scored, tasks: tuple[str, ...], settings: ReplaySettings) -> Tuned:
    """The value model chosen on one half of the viewers and confirmed on the other; else the untuned one."""
    start, log = ValueModel.for_tasks(tasks), scored.evidence.log
    if refusal := overlap(log, scored.target(start)).refusal:
        return untuned(tasks, f"The weights are the worth of each action; tuning was left out: {refusal}.")
    counts_BV = viewer_counts(log.viewer_R, settings.resamples, np.random.default_rng([settings.seed, 2]))
    chosen_half_V = viewer_folds(np.unique(log.viewer_R), 2) == 0
    estimator = ESTIMATORS[headline_of(log)]

    def judged(model: ValueModel, half_V: np.ndarray) -> tuple[float, np.ndarray]:
        """The estimate over the viewers of one half, and its resamples (B,)."""
        terms = estimator(log, scored.target(model))
        return float(replicates(terms, log.viewer_R, half_V[None].astype(float))[0]), replicates(
            terms, log.viewer_R, counts_BV * half_V
        )

    best, (best_value, best_B) = start, judged(start, chosen_half_V)
    steps: list[dict[str, Any]] = []
    tried = 1
    for _ in range(ROUNDS):
        before = best
        for knob, options in _knobs(best, tasks):
            for option in options:
                found, found_B = judged(option, chosen_half_V)
                tried += 1
                if found - best_value > np.nanstd(found_B - best_B):
                    steps.append({"knob": knob, "value": found, "gain": found - best_value, "model": option.as_dict()})
                    best, best_value, best_B = option, found, found_B
        if best == before:
            break
    (start_value, start_B), (tuned_value, tuned_B) = judged(start, ~chosen_half_V), judged(best, ~chosen_half_V)
    low, high = percentile_interval(tuned_B - start_B, LEVEL)
    gain = {"value": tuned_value - start_value, "low": low, "high": high, "level": LEVEL, "untuned": start_value}
    keep = best != start and low > 0
    about = f"{tried} value models were compared on {log.requests:,} validation requests"
    if best == start:
        sentence = (
            f"{about}; none gained more than one standard error over weighing each action by its worth, so that stays"
        )
    else:
        said = f"{tuned_value - start_value:+.3f} per request ({LEVEL:.0%} interval {low:+.3f} to {high:+.3f})"
        sentence = f"{about}; the best on one half of the viewers gained {said} on the other half over weighing each action by its worth"
        sentence += ", so it goes in force" if keep else ", which noise could explain, so the worths stay"
    chosen = best if keep else start
    sentence += f": {describe(chosen)}."
    say(sentence)
    return Tuned(
        chosen, {"tuned": keep, "sentence": sentence, "steps": steps, "gain": gain, "value_model": chosen.as_dict()}
    )


def describe(model: ValueModel) -> str:
    """The model in words."""
    weights = ", ".join(f"{task} {weight:g}" for task, weight in model.weights.items())
    return f"{weights}, tie exponent {model.tie_exponent:g}, freshness exponent {model.freshness_exponent:g}"


def value_slates(window: Window, score_P: np.ndarray, allowed_P: np.ndarray) -> np.ndarray:
    """Slates (R, K) of the best scores; ties go to the newer, then the larger post id; -1 beyond the pool."""
    owner_P = np.repeat(np.arange(len(window.request_R)), window.pool_size_R)
    order = np.lexsort((-window.pool_P, -window.created_at_P, -score_P, ~allowed_P, owner_P))
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
    yield (
        "freshness exponent",
        [replace(model, freshness_exponent=x) for x in FRESHNESS_EXPONENTS if x != model.freshness_exponent],
    )
