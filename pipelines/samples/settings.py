"""The settings of the samples; each can be set in the environment."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from contracts.settings import Settings

FEWEST = 10_000
"""Fewer rows than that tell nothing of a position, a slice or a day."""


class SampleSettings(Settings):
    """Environment prefix FEEDLOOP_SAMPLES_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_SAMPLES_", frozen=True, extra="forbid")

    keep_negatives: float = Field(
        1.0, gt=0, le=1, description="share of the training rows without any action that is kept; the others stay out"
    )
    seed: int = Field(7, ge=0, description="which rows are kept")
    most_estimated: int = Field(
        2_000_000,
        ge=FEWEST,
        description="training rows of whole viewers, at most, on which the examination is estimated",
    )
    most_carded: int = Field(
        1_000_000, ge=FEWEST, description="rows of whole requests, at most, that the data card is drawn from"
    )
