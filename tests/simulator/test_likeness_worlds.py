"""Short ways to the same figures: worlds in memory, jackknifes from sums, a likelihood with its slopes."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.sparse import csr_matrix
from scipy.stats import binomtest, lognorm, poisson
from sklearn.linear_model import PoissonRegressor

from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, Truth, simulate
from simulator.likeness import looks, read_log
from simulator.likeness.estimates import GROUPS, groups_of, jackknife, jackknife_of_sums, share, sums_by_group
from simulator.likeness.log import LoggedLog
from simulator.likeness.returns import _normal, _poisson_mixture
from simulator.likeness.ties import contact_groups
from simulator.likeness.worlds import world_of

SMALL = EnvironmentSettings(users=90, days=7, warmup_days=1, requests_per_day=1.5, mean_friends=10, seed=21)


@pytest.mark.parametrize("daily", [False, True])
def test_a_world_in_memory_is_the_log_that_its_settings_write(tmp_path, daily: bool):
    settings = SMALL.model_copy(update={"daily": daily})
    simulate(Workspace(tmp_path), settings)
    written = read_log(Workspace(tmp_path).lake)
    kept, latents = world_of(settings)
    assert kept.impressions is not None and written.impressions is not None
    for ours, theirs in ((kept, written), (kept.impressions, written.impressions)):
        for name, values in vars(ours).items():
            if isinstance(values, np.ndarray) and not name.endswith(("_C", "_S")):
                np.testing.assert_array_equal(values, getattr(theirs, name), name)

    # Contacts and sessions come in another order, which tells nothing.
    def ordered(log: LoggedLog) -> np.ndarray:
        return np.sort(log.contact_known_at_C * 10_000 + log.contact_user_C * 100 + log.contact_author_C)

    np.testing.assert_array_equal(ordered(kept), ordered(written))
    np.testing.assert_array_equal(np.sort(kept.session_at_S), np.sort(written.session_at_S))
    np.testing.assert_array_equal(contact_groups(kept, kept.impressions), contact_groups(written, written.impressions))
    np.testing.assert_array_equal(latents.tie_E, Truth.load(Workspace(tmp_path)).latents.tie_E)
    assert kept.absent == written.absent == {}


@pytest.mark.parametrize(("count", "total"), [(0, 40), (1, 40), (17, 300), (40, 40)])
def test_the_interval_of_a_share_is_wilsons(count: int, total: int):
    expected = binomtest(count, total).proportion_ci(0.95, "wilson")
    one = share(count, total, "")
    assert (one.value, one.low, one.high) == pytest.approx((count / total, expected.low, expected.high), abs=1e-12)


def test_a_jackknife_from_sums_is_that_of_refits():
    generator = np.random.default_rng(1)
    cluster_N = generator.integers(0, 300, 4_000)
    class_N, acted_N = generator.integers(0, 3, 4_000), generator.random(4_000) < 0.2

    def refit(kept_N: np.ndarray) -> np.ndarray:
        return np.bincount(class_N[kept_N], acted_N[kept_N], 3) / np.bincount(class_N[kept_N], minlength=3)

    group_N = groups_of(cluster_N)
    sums = np.concatenate([sums_by_group(group_N, class_N, 3), sums_by_group(group_N, class_N, 3, acted_N)], axis=1)
    value_C, reach_C = jackknife_of_sums(sums, lambda sums_X: sums_X[3:] / sums_X[:3])
    expected_C, expected_reach_C = jackknife(cluster_N, refit)
    np.testing.assert_allclose(value_C, expected_C, rtol=1e-12)
    np.testing.assert_allclose(reach_C, expected_reach_C, rtol=1e-9)


def test_one_step_without_a_group_lands_where_a_refit_does():
    generator = np.random.default_rng(2)
    inputs_N2 = generator.integers(0, 3, (6_000, 2))
    design_J2 = np.array([[a, b] for a in range(3) for b in range(3)], float)
    cell_N, group_N = inputs_N2 @ [3, 1], groups_of(generator.integers(0, 400, 6_000))
    acts_N = generator.poisson(np.exp(-1.5 + inputs_N2 @ [0.4, -0.7]))
    weight_N = generator.random(6_000) + 0.5
    weight_GJ = sums_by_group(group_N, cell_N, 9, weight_N)
    acts_GJ = sums_by_group(group_N, cell_N, 9, weight_N * acts_N)
    coefficients, without_G2 = looks._log_linear(csr_matrix(design_J2), weight_GJ, acts_GJ, 2)
    assert coefficients == pytest.approx([0.4, -0.7], abs=0.15)
    assert without_G2.shape == (GROUPS, 2)
    for group, found in enumerate(without_G2):
        weight_J = weight_GJ.sum(axis=0) - weight_GJ[group]
        model = PoissonRegressor(alpha=looks.RIDGE, tol=1e-10, max_iter=10_000)
        model.fit(design_J2, (acts_GJ.sum(axis=0) - acts_GJ[group]) / weight_J, sample_weight=weight_J)
        np.testing.assert_allclose(found, model.coef_, atol=0.02 * without_G2.std(axis=0).max())


def test_the_likelihood_of_counts_is_that_of_the_mixture_and_its_slopes_are_its_own():
    generator = np.random.default_rng(3)
    days_U = generator.uniform(1, 9, 30)
    counts_U = generator.poisson(days_U * generator.lognormal(-0.3, 0.8, 30)).astype(float)
    z_Q, weight_Q = _normal()

    def value(free: np.ndarray) -> float:
        return _poisson_mixture(counts_U, days_U * np.exp(free[2]), free[0] + free[1] * z_Q, weight_Q)[0]

    at = np.array([-0.3, 0.8, 0.0])
    _, slope_Q, mean_U = _poisson_mixture(counts_U, days_U, at[0] + at[1] * z_Q, weight_Q)
    slopes = approx_fprime(at, value, 1e-6)
    assert [slope_Q.sum(), slope_Q @ z_Q, -mean_U @ days_U] == pytest.approx(slopes, rel=1e-3, abs=1e-3)
    rate_M = lognorm(0.9, scale=np.exp(-0.1)).ppf((np.arange(40_000) + 0.5) / 40_000)

    def log_chances(rate_M: np.ndarray) -> float:
        return sum(np.log(poisson.pmf(n, d * rate_M).mean()) for n, d in zip(counts_U, days_U))

    other = lognorm(0.8, scale=np.exp(-0.3)).ppf((np.arange(40_000) + 0.5) / 40_000)
    expected = log_chances(rate_M) - log_chances(other)
    assert value(np.array([-0.1, 0.9, 0.0])) - value(at) == pytest.approx(expected, abs=1e-3)
