"""A log that came through a mapping goes on: counters and samples are made of it, with the labels that the log holds."""

from pathlib import Path

import pytest

from contracts.samples import SAMPLES
from contracts.states import STATES
from contracts.workspace import Workspace
from pipelines.sources import SOURCES
from tests.pipelines.test_sources_formats import WRITTEN


@pytest.mark.spark
@pytest.mark.slow
def test_features_and_samples_are_made_of_a_mapped_log(spark: object, tmp_path: Path) -> None:
    from pipelines.expectations.check import breaches_of
    from pipelines.features import build_states
    from pipelines.samples import build_samples

    workspace = Workspace(tmp_path / "ws")
    SOURCES["kuairand"](WRITTEN["kuairand"](tmp_path / "in", None), workspace)
    assert breaches_of(workspace.lake, spark) == []
    build_states(workspace, spark)
    build_samples(workspace, spark)
    assert workspace.features.manifest(STATES["viewer"]).rows
    samples = workspace.samples.read(SAMPLES).to_pandas()
    assert set(samples["policy"]) >= {"standard"} and samples["label_click"].mean() == pytest.approx(0.5)
    # Both videos of a page bear one moment; what came of them is not known yet to either.
    assert samples.groupby("request_id")["requested_at"].nunique().eq(1).all()
    # The first sample comes after three days of warm-up with one look each, of 3, 2 and 1 days ago.
    first = samples.sort_values("requested_at").groupby("user_id")["viewer_views_7d"].first()
    assert first.tolist() == pytest.approx([sum(2 ** (-days / 7) for days in (1, 2, 3))] * 2, abs=1e-9)
