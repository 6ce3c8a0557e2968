"""Which weeks strengths are learned from and judged on, what is learned from them, and the figures of a week."""

from typing import Any

import numpy as np
import pytest

from contracts.clock import DAY
from contracts.dataset import Dataset
from contracts.errors import BadInput
from pipelines.strength.build import _drawn
from pipelines.strength.judge import judge
from pipelines.strength.learn import NEVER, PairRows, fit_plain, fit_trees, plain_chances, too_few
from pipelines.strength.rows import INPUT_NAMES
from pipelines.strength.settings import StrengthSettings
from pipelines.strength.weeks import check_closed, judged_moments, training_moments

START = 1_700_006_400_000_000
SETTINGS = StrengthSettings(trees=30)


def pair_rows(rng: np.random.Generator, count: int, as_of: int, **inputs: np.ndarray) -> PairRows:
    values_NF = rng.random((count, len(INPUT_NAMES))).astype(np.float32)
    for name, value_N in inputs.items():
        values_NF[:, INPUT_NAMES.index(name)] = value_N
    ids_N = np.arange(count)
    return PairRows(np.full(count, as_of), ids_N, ids_N + 1, np.full(count, NEVER), values_NF)


def answered(rng: np.random.Generator, count: int, as_of: int) -> PairRows:
    """Friendships whose contact depends on what the friend does, and not on what the user did lately."""
    back_N = rng.exponential(1.0, count)
    rows = pair_rows(rng, count, as_of, back_contacts_180d=back_N)
    rows.contact_known_at_N[rng.random(count) < back_N / (1.0 + back_N)] = as_of + DAY
    return rows


def test_training_weeks_are_over_before_the_moment_and_have_a_week_of_log_before_them() -> None:
    end = START + 28 * DAY
    assert training_moments(end, START, 3) == tuple(START + days * DAY for days in (21, 14, 7))
    assert training_moments(end, START, 2) == tuple(START + days * DAY for days in (21, 14))
    assert training_moments(START + 18 * DAY, START, 3) == (START + 11 * DAY,)
    assert training_moments(START + 14 * DAY - 1, START, 3) == ()


def test_a_training_week_that_overlaps_the_predicted_week_is_refused(rng: np.random.Generator) -> None:
    use = START + 21 * DAY
    check_closed([use - 7 * DAY, use - 14 * DAY], use)
    overlapping = answered(rng, 200, use - 7 * DAY + 1)
    for fit in (lambda: fit_trees(overlapping, use, SETTINGS), lambda: fit_plain(overlapping, use)):
        with pytest.raises(BadInput, match=r"training week from 2023-11-29 .* ends at .*after 2023-12-06"):
            fit()


def test_a_contact_that_became_known_after_the_moment_of_use_is_no_label(rng: np.random.Generator) -> None:
    rows = answered(rng, 500, START)
    use = START + 7 * DAY
    late = PairRows(rows.as_of_N, rows.user_id_N, rows.friend_id_N, rows.contact_known_at_N.copy(), rows.inputs_NF)
    late.contact_known_at_N[late.contact_known_at_N == NEVER] = use
    assert fit_trees(late, use, SETTINGS).model_to_string() == fit_trees(rows, use, SETTINGS).model_to_string()
    assert fit_trees(late, use + 1, SETTINGS).model_to_string() != fit_trees(rows, use, SETTINGS).model_to_string()


def test_the_weeks_that_judge_are_over_at_the_logs_end() -> None:
    log: dict[str, Any] = {"source": "test", "start": START, "warmup_us": 7 * DAY, "attribution_us": DAY, "live_us": 6 * DAY,
           "tasks": ("like",), "has_propensities": True}  # fmt: skip
    days = {length: judged_moments(Dataset(end=START + length * DAY, **log)) for length in (14, 21, 28, 60)}
    assert days[14] == {}
    assert days[21] == {"validation": START + 14 * DAY}
    assert days[28] == {"validation": START + 18 * DAY, "test": START + 21 * DAY}
    split = Dataset(end=START + 60 * DAY, **log).split()
    assert days[60] == {"validation": split.validation[0], "test": split.test[0]}


def test_contacts_that_the_users_own_past_does_not_tell_are_learned_from_the_other_direction(
    rng: np.random.Generator,
) -> None:
    use = START + 7 * DAY
    learn, held_out = answered(rng, 4000, START), answered(rng, 4000, use)
    contacted_N = held_out.contacted(use + 7 * DAY)
    chance_N = fit_trees(learn, use, SETTINGS).predict(held_out.inputs_NF)
    plain_N = plain_chances(fit_plain(learn, use), held_out)
    days_N = np.full(len(held_out), 90.0)
    figures = judge(contacted_N, chance_N, plain_N, days_N, days_N)
    assert figures["all"]["learned"]["auc"] > 0.72
    assert figures["all"]["contacts_14d"]["auc"] < 0.55
    assert figures["all"]["learned"]["log_loss"] < figures["all"]["contacts_14d"]["log_loss"]
    assert figures["all"]["learned"]["calibration_error"] < 0.04
    assert figures["slow"] == figures["all"] and figures["new"]["friendships"] == 0


def test_figures_of_a_week_equal_those_counted_by_hand() -> None:
    contacted_N = np.array([True, False, True, False])
    chance_N = np.array([0.8, 0.6, 0.4, 0.2])
    figures = judge(contacted_N, chance_N, 1 - chance_N, np.array([3.0, 70, 70, 70]), np.array([365.0, 60, 10, 365]))
    assert figures["all"]["learned"]["auc"] == 0.75 and figures["all"]["contacts_14d"]["auc"] == 0.25
    assert figures["all"]["learned"]["log_loss"] == pytest.approx(-np.log([0.8, 0.4, 0.4, 0.8]).mean(), abs=1e-6)
    assert figures["all"]["learned"]["calibration_error"] == pytest.approx((0.2 + 0.6 + 0.6 + 0.2) / 4)
    assert [figures[name]["friendships"] for name in ("all", "slow", "new")] == [4, 2, 1]
    assert figures["slow"]["learned"] is None and figures["slow"]["contact_rate"] == 0.0


def test_too_few_contacts_are_told_with_their_count(rng: np.random.Generator) -> None:
    rows = pair_rows(rng, 300, START)
    rows.contact_known_at_N[:49] = START + DAY
    assert "49 of 300 friendships" in (too_few(rows, START + 7 * DAY, SETTINGS) or "")
    rows.contact_known_at_N[49] = START + DAY
    assert too_few(rows, START + 7 * DAY, SETTINGS) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("MOST_ROWS", "1"), ("ROWS_AT_ONCE", "1"), ("LEAVES", "131073"), ("THREADS", "100000"), ("TREES", "2000000000")],
)
def test_settings_that_no_learning_can_have_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"FEEDLOOP_STRENGTH_{name}", value)
    with pytest.raises(BadInput, match=f"^FEEDLOOP_STRENGTH_{name} is '{value}': input should be (less|greater) than"):
        StrengthSettings()


def test_where_rows_were_drawn_too_few_contacts_are_told_with_the_setting_that_drew_them() -> None:
    settings = StrengthSettings(most_rows=10_000)
    assert _drawn({START: 4_000, START + 1: 7_000}, (START, START + 1), settings) == (
        "; FEEDLOOP_STRENGTH_MOST_ROWS=10000 drew them from 11000"
    )
    assert _drawn({START: 10_000}, (START,), settings) == ""
