"""The feed pipeline: one library, no server in it; the API runs it over Redis, replay over memory.

`load_models` and `serving_policy` / `pool_policy` make a `FeedPipeline`; `FeedPipeline.run(Query, Store)` makes a `Feed`.
"""

from serving.feed.candidates import Candidates, Feed, Prepared, Query
from serving.feed.models import load_models
from serving.feed.pipeline import FeedPipeline
from serving.feed.policies import POLICIES, Models, pool_policy, serving_policy
from serving.feed.value import VALUE_MODEL_FILE, ValueModel

__all__ = [
    "POLICIES", "VALUE_MODEL_FILE", "Candidates", "Feed", "FeedPipeline", "Models", "Prepared", "Query", "ValueModel",
    "load_models", "pool_policy", "serving_policy",
]  # fmt: skip
