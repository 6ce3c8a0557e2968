"""What a fit finds: a value with its 95% interval, or a sentence that says why there is none."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
from scipy import special

LEVEL = 0.95
Z = float(special.ndtri((1 + LEVEL) / 2))
GROUPS = 20
"""Groups of clusters that a jackknife leaves out in turn."""


@dataclass(frozen=True)
class Estimate:
    """One fitted quantity. `setting`: the environment's setting that takes the value, with its place in a tuple."""

    value: float
    low: float
    high: float
    unit: str
    setting: str = ""
    place: int | None = None

    @classmethod
    def around(cls, value: float, reach: float, unit: str, setting: str = "", place: int | None = None) -> "Estimate":
        """With limits `reach` below and above."""
        return cls(float(value), float(value - reach), float(value + reach), unit, setting, place)

    def exp(self, unit: str) -> "Estimate":
        """Of what this is the logarithm of."""
        value, low, high = np.exp([self.value, self.low, self.high]).tolist()
        return Estimate(value, low, high, unit, self.setting, self.place)


@dataclass
class Fit:
    """Name -> estimate, in the order in which they were found; what was not fitted, and why; how each part was done."""

    estimates: dict[str, Estimate] = field(default_factory=dict)
    not_fitted: dict[str, str] = field(default_factory=dict)
    methods: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict:
        """For JSON."""
        return {"estimates": {name: asdict(one) for name, one in self.estimates.items()},
                "not_fitted": self.not_fitted, "methods": self.methods}  # fmt: skip


def share(count: int, total: int, unit: str, setting: str = "", place: int | None = None) -> Estimate:
    """A share of independent draws with its interval (Wilson 1927; `scipy.stats.binomtest` takes a test with it)."""
    rate, spread = count / total, Z * Z / total
    middle = (rate + spread / 2) / (1 + spread)
    reach = np.sqrt(spread * rate * (1 - rate) + spread * spread / 4) / (1 + spread)
    low, high = max(float(middle - reach), 0.0), min(float(middle + reach), 1.0)
    return Estimate(rate, low if count else 0.0, high if count < total else 1.0, unit, setting, place)


def on_log_scale(log_value: float, error: float, unit: str, setting: str = "", place: int | None = None) -> Estimate:
    """exp of a value whose logarithm has the standard error `error`."""
    return Estimate.around(log_value, Z * error, unit, setting, place).exp(unit)


def among_worlds(value_R: np.ndarray, unit: str, setting: str = "", place: int | None = None) -> Estimate:
    """From one value per simulated world, each matched to the same log, (R,): the log is one more draw of such a world.

    The interval predicts that draw: Student's t with R - 1 degrees of freedom, the spread times sqrt(1 + 1 / R).
    """
    worlds = len(value_R)
    reach = special.stdtrit(worlds - 1, (1 + LEVEL) / 2) * value_R.std(ddof=1) * np.sqrt(1 + 1 / worlds)
    return Estimate.around(value_R.mean(), reach, unit, setting, place)


def groups_of(cluster_N: np.ndarray) -> np.ndarray:
    """Group (N,) of `GROUPS` that each row's cluster falls into; whole clusters together (what a person does hangs together)."""
    group_N = np.asarray(cluster_N).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    return (group_N % np.uint64(GROUPS)).astype(np.int64)


def jackknife_reach(without_GP: np.ndarray) -> np.ndarray:
    """Half the width (P,) of the 95% interval, from the values without each group in turn (G, P); Student's t."""
    error_P = np.sqrt((GROUPS - 1) / GROUPS * ((without_GP - without_GP.mean(axis=0)) ** 2).sum(axis=0))
    return special.stdtrit(GROUPS - 1, (1 + LEVEL) / 2) * error_P


def jackknife(cluster_N: np.ndarray, fit: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Value (P,) of `fit(kept_N)` on all rows, and half the width (P,) of its 95% interval, by clusters left out."""
    group_N = groups_of(cluster_N)
    value_P = fit(np.ones(len(group_N), bool))
    return value_P, jackknife_reach(np.stack([fit(group_N != group) for group in range(GROUPS)]))


def jackknife_of_sums(sums_GX: np.ndarray, fit: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """As `jackknife`, for a value that depends on sums over rows alone: of each group of `groups_of` (G, X)."""
    total_X = sums_GX.sum(axis=0)
    return fit(total_X), jackknife_reach(np.stack([fit(total_X - sums_X) for sums_X in sums_GX]))


def sums_by_group(
    group_N: np.ndarray, class_N: np.ndarray, classes: int, weight_N: np.ndarray | None = None
) -> np.ndarray:
    """Rows, or their weights, of each group and class (G, C)."""
    return np.bincount(group_N * classes + class_N, weight_N, GROUPS * classes).reshape(GROUPS, classes)


def clustered_covariance(score_NP: np.ndarray, hessian_PP: np.ndarray, *cluster_N: np.ndarray) -> np.ndarray:
    """Sandwich covariance (P, P) of an estimate whose scores hang together within each of one or two clusterings.

    Two clusterings: by the first plus by the second less by both (Cameron, Gelbach and Miller 2011).
    """

    def middle(key_N: np.ndarray) -> np.ndarray:
        ids, at_N = np.unique(key_N, return_inverse=True)
        sums = np.stack([np.bincount(at_N, column, minlength=len(ids)) for column in score_NP.T], axis=1)
        return sums.T @ sums

    meat = sum(middle(key_N) for key_N in cluster_N)
    if len(cluster_N) == 2:
        meat = meat - middle(cluster_N[0] * (int(cluster_N[1].max()) + 1) + cluster_N[1])
    inverse = np.linalg.inv(hessian_PP)
    return inverse @ meat @ inverse
