"""Replay: walks the logged requests in time order through the serving feed pipeline and judges policies before people do."""

from simulator.replay.replay import replay
from simulator.replay.settings import ReplaySettings

__all__ = ["ReplaySettings", "replay"]
