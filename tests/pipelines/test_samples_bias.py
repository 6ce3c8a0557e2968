"""What a sample row says of how it came to be, and the data card that shows it to people."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from contracts.clock import DAY, HOUR, MINUTE
from contracts.errors import BadInput
from contracts.features import FEATURES
from contracts.samples import SAMPLES
from contracts.tables import ACTIONS
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from pipelines.finishing import engaged, examined, share_of_requests, thinned
from pipelines.samples.bias import examination_of
from pipelines.samples.card import write_card
from pipelines.samples.card.figures import stability_index
from pipelines.samples.examination import Examination
from pipelines.samples.settings import SampleSettings
from tests.pipelines.small_log import START, save, table

ROWS = 6000


@pytest.fixture
def samples() -> pa.Table:
    """Rows of a train and a test window, as the Spark plan hands them over; a tenth is clicked, half is looked at."""
    rng = np.random.default_rng(3)
    place = np.arange(ROWS)
    clicked_N = (rng.random(ROWS) < 0.1).astype(np.int8)
    columns: dict[str, object] = {
        "request_id": place // 4, "user_id": rng.integers(1, 200, ROWS // 4).repeat(4), "position": place % 4,
        "post_id": rng.integers(1, 500, ROWS), "author_id": rng.integers(1, 50, ROWS),
        "shown_at": START + place * MINUTE, "requested_at": START + place * MINUTE, "viewed": rng.random(ROWS) < 0.5,
        "policy": ["shuffle"] * ROWS, "propensity": np.full(ROWS, 0.25), "split": np.where(place < 4000, "train", "test"),
        **{f"label_{task}": clicked_N if task == "click" else pa.nulls(ROWS, pa.int8()) for task in TASK_NAMES},
        **{feature.name: rng.exponential(1.0, ROWS) for feature in FEATURES},
    }  # fmt: skip
    return pa.table({name: columns[name] for name in SAMPLES.schema.names if name in columns})


def with_examination(samples: pa.Table) -> tuple[pa.Table, Examination | None]:
    found = examination_of(samples.filter(pc.equal(samples["split"], "train")))
    curve_K = found.curve_K if found and found.method != "viewed" else None
    return examined(samples, curve_K), found


def test_a_viewed_row_was_looked_at_for_certain_where_the_log_says_who_looked(samples: pa.Table) -> None:
    made, found = with_examination(samples)
    assert found is not None and found.method == "viewed"
    assert set(made["examination"].to_pylist()) == {1.0}


def test_rows_carry_the_estimate_where_the_log_does_not_say_who_looked(samples: pa.Table) -> None:
    blind = samples.set_column(samples.column_names.index("viewed"), "viewed", pa.array(np.ones(ROWS, bool)))
    made, found = with_examination(blind)
    assert found is not None and found.method == "randomised"
    assert made["examination"].to_pylist()[:4] == found.curve_K.tolist()


def test_impressions_that_an_adapter_derived_have_no_examination(samples: pa.Table) -> None:
    policy = pa.array(["derived:friends-recent"] * ROWS)
    made, found = with_examination(samples.set_column(samples.column_names.index("policy"), "policy", policy))
    assert found is None and set(made["examination"].to_pylist()) == {1.0}


def test_thinning_takes_training_negatives_alone_and_the_kept_share_restores_the_rate(samples: pa.Table) -> None:
    kept = thinned(samples, 0.25, 7)
    train = np.array(kept["split"].to_pylist()) == "train"
    assert (~train).sum() == 2000, "rows of the test window must all stay"
    positive_N = engaged(kept)
    assert positive_N[train].sum() == engaged(samples)[:4000].sum(), "rows with an action must all stay"
    share_N = kept["keep_share"].to_numpy()
    assert set(share_N[positive_N | ~train]) == {1.0} and set(share_N[train & ~positive_N]) == {0.25}
    rate = np.average(positive_N[train], weights=1 / share_N[train])
    assert rate == pytest.approx(engaged(samples)[:4000].mean(), rel=0.05)
    assert positive_N[train].mean() > 2 * rate, "unweighted, the kept rows would tell another rate"


def test_the_same_rows_are_kept_in_whatever_order_they_come(samples: pa.Table) -> None:
    order = np.random.default_rng(1).permutation(ROWS)
    one, other = thinned(samples, 0.5, 7), thinned(samples.take(pa.array(order)), 0.5, 7)
    by = [("shown_at", "ascending")]
    assert one.sort_by(by).equals(other.sort_by(by))


def test_a_card_drawn_from_some_requests_says_so_and_takes_requests_whole(samples: pa.Table, tmp_path: Path) -> None:
    made, found = with_examination(samples)
    made = thinned(made, 1.0, 7)
    drawn = share_of_requests(made, 0.3)
    assert set(pc.value_counts(drawn["request_id"]).field("counts").to_pylist()) == {4}
    assert drawn.num_rows == pytest.approx(0.3 * ROWS, rel=0.15)
    workspace = save(tmp_path, {"actions": _actions(made)})
    write_card(workspace, drawn, found, ROWS)
    page = (workspace.reports / "samples.html").read_text()
    assert "Data card: 6,000 samples" in page and f"{drawn.num_rows:,} of them" in page


def test_a_card_stands_where_no_row_was_drawn(samples: pa.Table, tmp_path: Path) -> None:
    made = thinned(with_examination(samples)[0], 1.0, 7)
    workspace = save(tmp_path, {"actions": _actions(made)})
    write_card(workspace, made.slice(0, 0), None, ROWS)
    page = (workspace.reports / "samples.html").read_text()
    assert "Data card: 6,000 samples" in page and "of 0 of them" in page
    assert "NaN" not in (workspace.reports / "samples.json").read_text()


@pytest.mark.parametrize("name", ["most_carded", "most_estimated"])
def test_so_few_rows_that_a_card_or_a_curve_would_say_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    variable = f"FEEDLOOP_SAMPLES_{name.upper()}"
    monkeypatch.setenv(variable, "1")
    with pytest.raises(BadInput, match=f"^{variable} is '1': input should be greater than or equal to 10000$"):
        SampleSettings()


def test_the_order_of_the_rows_moves_no_digit_of_the_curve(samples: pa.Table) -> None:
    blind = samples.set_column(samples.column_names.index("viewed"), "viewed", pa.array(np.ones(ROWS, bool)))
    order = pa.array(np.random.default_rng(1).permutation(ROWS))
    one, other = (with_examination(rows)[1] for rows in (blind, blind.take(order)))
    assert one is not None and other is not None and one.curve_K.tobytes() == other.curve_K.tobytes()


def test_a_shift_of_half_the_spread_drifts_and_two_draws_of_one_day_do_not() -> None:
    rng = np.random.default_rng(0)
    day = rng.normal(size=5000)
    assert stability_index(day, rng.normal(size=5000)) < 0.02
    assert stability_index(day, rng.normal(0.8, 1.0, 5000)) > 0.2
    assert stability_index(np.zeros(100), np.r_[np.zeros(50), np.ones(50)]) > 0.2


def test_the_card_counts_thinned_rows_back_in_and_tells_late_actions(samples: pa.Table, tmp_path: Path) -> None:
    made, found = with_examination(samples)
    kept = thinned(made, 0.25, 7)
    workspace = save(tmp_path, {"actions": _actions(kept)})
    write_card(workspace, kept, found, kept.num_rows)
    card = json.loads((workspace.reports / "samples.json").read_text())
    assert card["splits"]["train"]["rates"]["click"] == pytest.approx(engaged(samples)[:4000].mean(), rel=0.05)
    assert card["splits"]["train"]["rates"]["like"] is None
    assert card["delays"]["actions"] == 2
    assert card["delays"]["known_after_it_closed"] == 0.5
    page = (workspace.reports / "samples.html").read_text()
    assert page.count("<svg") == 3 and "<script" not in page and "src=" not in page, "the page stands alone"


def test_a_drifted_feature_is_named_at_the_top_of_the_page(samples: pa.Table, tmp_path: Path) -> None:
    made, found = with_examination(samples)
    made = thinned(made, 1.0, 7)
    shown_at = made["shown_at"].to_numpy()
    last_day = shown_at // DAY == shown_at.max() // DAY
    shifted = made["mutual_friends"].to_numpy() + 3.0 * last_day
    made = made.set_column(made.column_names.index("mutual_friends"), "mutual_friends", pa.array(shifted))
    workspace = save(tmp_path, {"actions": _actions(made)})
    write_card(workspace, made, found, made.num_rows)
    page = (workspace.reports / "samples.html").read_text()
    assert "1 feature drifted" in page and "mutual_friends" in page[: page.index("<h2>")]


def _actions(samples: pa.Table) -> pa.Table:
    """Two clicks an hour after their showing, one of which is known a day after it happened; a visit without a request."""
    rows = samples.select(["request_id", "user_id", "post_id", "author_id", "shown_at"]).slice(0, 3).to_pylist()
    at = [row["shown_at"] + HOUR // 2 for row in rows]
    return table(
        ACTIONS, action_id=[1, 2, 3], request_id=[rows[0]["request_id"], rows[1]["request_id"], None],
        **{name: [row[name] for row in rows] for name in ("user_id", "post_id", "author_id")},
        kind=["click", "click", "profile"], occurred_at=at, known_at=[at[0], at[1] + 20 * DAY, at[2]],
    )  # fmt: skip


def test_the_card_of_a_workspace_is_the_same_bytes_twice(samples: pa.Table, tmp_path: Path) -> None:
    made, found = with_examination(samples)
    made = thinned(made, 1.0, 7)
    pages = []
    for name in ("one", "two"):
        workspace: Workspace = save(tmp_path / name, {"actions": _actions(made)})
        write_card(workspace, made, found, made.num_rows)
        pages.append((workspace.reports / "samples.html").read_bytes())
    assert pages[0] == pages[1]
