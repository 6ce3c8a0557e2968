"""The HTTP API: feeds out, events in, health and metrics, and the page that shows them."""

from serving.api.app import create_app
from serving.api.sample import sample_feed
from serving.api.server import require_port, serve

__all__ = ["create_app", "require_port", "sample_feed", "serve"]
