"""The behaviour environment: people, ties, posts and feeds with a known truth, as a log in the contracts' tables."""

from simulator.environment.settings import EnvironmentSettings
from simulator.environment.simulate import simulate
from simulator.environment.truth import Truth

__all__ = ["EnvironmentSettings", "Truth", "simulate"]
