"""The settings of replay; each can be set in the environment."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from contracts.settings import Settings


class ReplaySettings(Settings):
    """Replay; environment prefix FEEDLOOP_REPLAY_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_REPLAY_", frozen=True, extra="forbid")

    test_requests: int = Field(
        6000, ge=1, description="most test requests that are replayed, chosen by a hash of their ids"
    )
    validation_requests: int = Field(
        3000, ge=1, description="most validation requests that the value model is tuned on"
    )
    pool_entries: int = Field(
        300_000, ge=1, description="most pool entries of a window's requests together; 300,000 peak at 2.6 GB of memory"
    )
    resamples: int = Field(1000, ge=20, description="bootstrap resamples of viewers")
    level: float = Field(0.95, gt=0, lt=1, description="of the intervals")
    folds: int = Field(2, ge=2, description="viewer folds of the reward regression")
    regression_trees: int = Field(60, ge=1)
    truth_orderings: int = Field(
        8, ge=1, description="random orderings per request behind the random policy's true value"
    )
    parity_requests: int = Field(200, ge=0, description="requests whose features are compared with the samples")
    threads: int = Field(1, ge=1, le=1024, description="of the reward regression; on a busy machine more are slower")
    seed: int = Field(7, ge=0)
