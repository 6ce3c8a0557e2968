"""The models that replay judges, checked that they never saw the test window."""

from dataclasses import dataclass, replace

from contracts.errors import BadInput
from contracts.lake import check_made_of
from contracts.samples import SAMPLES
from contracts.splits import TimeSplit
from contracts.tables import TABLES
from contracts.workspace import Workspace
from ranking.scorers import PrerankScorer, RankerScorer
from serving.feed import Models, ValueModel, load_models
from simulator.replay.checks import check_model


@dataclass(frozen=True)
class TrainedModels:
    """The models under judgement; `served` is how the pipeline takes them."""

    served: Models
    prerank: PrerankScorer
    ranker: RankerScorer

    def with_value(self, model: ValueModel) -> Models:
        """As served with this value model, whatever is in force now."""
        return replace(self.served, value=model)


def load_trained(workspace: Workspace, split: TimeSplit) -> TrainedModels:
    """The pre-ranker and ranker in force; `BadInput` when one is missing or may have been trained on the test window."""
    served = load_models(workspace, with_recall=False)
    if not isinstance(served.prerank, PrerankScorer):
        raise BadInput("there is no prerank model to judge: run `feedloop train prerank` first")
    if not isinstance(served.ranker, RankerScorer):
        raise BadInput("there is no ranker model to judge: run `feedloop train ranker` first")
    samples = workspace.samples.manifest(SAMPLES)
    check_made_of(samples, workspace.lake, TABLES.values(), "samples")
    samples_hash = samples.content_hash
    for kind in ("prerank", "ranker"):
        check_model(workspace.artifacts.load(kind), samples_hash, split.test[0])
    return TrainedModels(served, served.prerank, served.ranker)
