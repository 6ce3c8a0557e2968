"""The data card of a sample set: what is in it, for people (a page) and machines (JSON)."""

from pipelines.samples.card.page import write_card

__all__ = ["write_card"]
