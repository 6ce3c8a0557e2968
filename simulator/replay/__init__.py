"""Replay: walks the logged requests in time order through the serving feed pipeline and judges policies before people do."""

from simulator.replay.end_to_end import replay
from simulator.replay.question import POLICIES, Question
from simulator.replay.settings import ReplaySettings

__all__ = ["POLICIES", "Question", "ReplaySettings", "replay"]
