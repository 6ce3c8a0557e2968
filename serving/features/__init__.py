"""Online features: events into counter states, and states plus facts into the models' inputs, as declared in contracts."""

from serving.features.hydrate import FeatureReader
from serving.features.updater import Event, event_mutations

__all__ = ["Event", "FeatureReader", "event_mutations"]
