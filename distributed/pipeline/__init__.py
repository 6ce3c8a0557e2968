"""Pipeline parallel: a model cut into stages, micro-batches passed between ranks in the order of a schedule."""

from distributed.pipeline.forward import run_forwards
from distributed.pipeline.links import linked
from distributed.pipeline.run import PipelineResult, needs_links, run_pipeline
from distributed.pipeline.split import stage_layers, stages_of
from distributed.pipeline.tied import sum_tied_gradients_

__all__ = [
    "PipelineResult",
    "linked",
    "needs_links",
    "run_forwards",
    "run_pipeline",
    "stage_layers",
    "stages_of",
    "sum_tied_gradients_",
]
