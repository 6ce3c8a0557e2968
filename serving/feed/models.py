"""Loads the models in force, or of given versions, and says aloud what is missing or weighs nothing."""

from collections.abc import Mapping

from contracts.errors import BadInput
from contracts.progress import say
from contracts.workspace import Workspace
from serving.feed.policies import Models
from serving.feed.value import ValueModel

KINDS = ("recall", "prerank", "ranker", "value_model")


def load_models(workspace: Workspace, versions: Mapping[str, str] | None = None, *, with_recall: bool = True) -> Models:
    """The models of `versions` (kind -> artifact version), or those in force where `versions` is None.

    A kind that was never trained is None (the value model: every task weighs its worth). `BadInput` for a broken one,
    and for a version that is not there any more.
    """
    from ranking.scorers import PrerankScorer, RankerScorer
    from recall.runtime import RecallRuntime

    artifacts = {}
    for kind in KINDS:
        if kind == "recall" and not with_recall:
            continue
        if versions is None:
            if workspace.artifacts.versions(kind):
                artifacts[kind] = workspace.artifacts.load(kind)
        elif kind in versions:
            artifacts[kind] = workspace.artifacts.load(kind, versions[kind])
    ranker = RankerScorer.load(artifacts["ranker"]) if "ranker" in artifacts else None
    tasks = ranker.tasks if ranker is not None else workspace.dataset().tasks
    value = ValueModel.load(artifacts["value_model"]) if "value_model" in artifacts else ValueModel.for_tasks(tasks)
    if unused := value.unused(tasks):
        say(f"the value model gives no weight to {', '.join(unused)}: predicted and not used")
    return Models(
        prerank=PrerankScorer.load(artifacts["prerank"]) if "prerank" in artifacts else None,
        ranker=ranker,
        recall=RecallRuntime.load(artifacts["recall"]) if "recall" in artifacts else None,
        value=value,
        versions={kind: artifact.version for kind, artifact in artifacts.items()},
    )


def require_models(models: Models) -> None:
    """`BadInput` that names the models that the policy "full" wants and that were never trained."""
    missing = [kind for kind in ("prerank", "ranker") if getattr(models, kind) is None]
    if missing:
        raise BadInput(f"no {' and no '.join(missing)} in the workspace: run `feedloop train {missing[0]}` first")
