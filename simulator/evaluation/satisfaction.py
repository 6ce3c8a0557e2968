"""What a policy does to people over weeks, apart from clicks: ratios of sums over viewers, arm by arm, with clustered intervals.

Shapes: V viewers of one arm, B resamples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.evaluation.estimators import Terms, value
from simulator.evaluation.intervals import percentile_interval, replicates, student_interval


@dataclass(frozen=True)
class Measure:
    """One figure: `scale` x sum of numerators / sum of denominators; `better` is "higher" or "lower"."""

    key: str
    name: str
    better: str
    scale: float
    meaning: str


CLICKS = "clicks"
RETURN_DAYS = (1, 7, 28)
MEASURES = (
    Measure(CLICKS, "clicks per 1,000 impressions", "higher", 1000.0, "how often people open what they are shown: the short term"),
    *(Measure(f"return_{days}", f"return within {days} day{'s' if days > 1 else ''}", "higher", 1.0,
              f"share of visits that are followed by another within {days} day{'s' if days > 1 else ''}") for days in RETURN_DAYS),
    Measure("days_active", "days active per week", "higher", 1.0, "on how many days of a week a person comes"),
    Measure("hours_between", "hours between visits", "lower", 1.0, "from the end of a visit to the start of the next"),
    Measure("hides", "hides per 1,000 impressions", "lower", 1000.0, "how often people send a post away for good"),
    Measure("blocks", "blocks per 1,000 impressions", "lower", 1000.0, "how often people shut a person out"),
    Measure("weaker_ties", "share of ties that got weaker", "lower", 1.0,
            "friendships that ended or had less contact in the second half of the window than in the first"),
)  # fmt: skip


@dataclass(frozen=True)
class Sums:
    """What each viewer of one arm adds to a measure: numerators (V,) and denominators (V,)."""

    numerator_V: np.ndarray
    denominator_V: np.ndarray

    def terms(self, scale: float) -> Terms:
        """The ratio as an estimator whose requests are viewers."""
        ones_V1 = np.ones((len(self.numerator_V), 1), bool)
        return Terms(np.zeros((len(ones_V1), 1)), scale * self.numerator_V[:, None].astype(np.float64),
                     self.denominator_V[:, None].astype(np.float64), ones_V1, True)  # fmt: skip


def judge_arms(sums: Mapping[str, Mapping[str, Sums]], baseline: str | None, resamples: int, level: float,
               seed: int) -> list[dict[str, Any]]:  # fmt: skip
    """Per measure its figure in each arm, and its difference from `baseline`; `sums` is arm -> measure key -> sums.

    Viewers are resampled within their arm; arms are independent, since no viewer is in two. A difference is `worse` when
    its interval lies wholly on the bad side. Nothing is corrected for the number of measures: to miss a harm costs more
    than to look twice at none. A measure with nothing to divide by is None.
    """
    counts = {arm: _counts(next(iter(of.values())), resamples, [seed, i]) for i, (arm, of) in enumerate(sums.items())}
    judged = []
    for measure in MEASURES:
        terms = {
            arm: of[measure.key].terms(measure.scale)
            for arm, of in sums.items()
            if of[measure.key].denominator_V.sum() > 0
        }
        drawn = {arm: replicates(one, np.arange(len(one.shown_RK)), counts[arm]) for arm, one in terms.items()}
        by_arm: dict[str, Any] = dict.fromkeys(sums)
        for arm, one in terms.items():
            low, high = percentile_interval(drawn[arm], level)
            student_low, student_high = student_interval(one, np.arange(len(one.shown_RK)), level)
            by_arm[arm] = {"value": value(one), "low": low, "high": high, "student_low": student_low, "student_high": student_high,
                           "difference": None}  # fmt: skip
            if baseline in terms and arm != baseline:
                by_arm[arm]["difference"] = _difference(
                    measure, value(one), value(terms[baseline]), drawn[arm] - drawn[baseline], level
                )
        judged.append(
            {
                "key": measure.key,
                "name": measure.name,
                "better": measure.better,
                "meaning": measure.meaning,
                "by_arm": by_arm,
            }
        )
    return judged


def marks(judged: list[dict[str, Any]], baseline: str | None) -> list[dict[str, Any]]:
    """Arms that lose something that lasts: what they lose, whether they gain clicks by it, and a sentence."""
    by_key = {one["key"]: one for one in judged}
    found = []
    for arm in by_key[CLICKS]["by_arm"]:
        differences = {key: (one["by_arm"][arm] or {}).get("difference") for key, one in by_key.items()}
        lost = [key for key, one in differences.items() if key != CLICKS and one and one["worse"]]
        if not lost:
            continue
        clicks = differences[CLICKS]
        gains = bool(clicks and clicks["low"] > 0)
        losses = "; ".join(f"{by_key[key]['name']} {said(differences[key])}" for key in lost)
        opening = f"{arm} gains clicks ({said(clicks)}) and loses what lasts" if gains else f"{arm} loses what lasts"
        found.append(
            {"arm": arm, "gains_clicks": gains, "loses": lost, "sentence": f"{opening}, against {baseline}: {losses}."}
        )
    return sorted(found, key=lambda mark: not mark["gains_clicks"])


def said(difference: dict[str, float] | None) -> str:
    """A difference in words."""
    if difference is None:
        return "not known"
    if difference["relative"] is None:
        return f"{difference['value']:+.3g}"
    return f"{difference['relative']:+.1%}"


def _difference(measure: Measure, one: float, base: float, drawn_B: np.ndarray, level: float) -> dict[str, Any]:
    low, high = percentile_interval(drawn_B, level)
    worse = high < 0 if measure.better == "higher" else low > 0
    return {
        "value": one - base,
        "low": low,
        "high": high,
        "relative": (one - base) / base if base > 0 else None,
        "worse": bool(worse),
    }


def _counts(sums: Sums, resamples: int, seed: list[int]) -> np.ndarray:
    viewers = len(sums.numerator_V)
    generator = np.random.default_rng(seed)
    return generator.multinomial(viewers, np.full(viewers, 1.0 / viewers), size=resamples).astype(np.float64)
