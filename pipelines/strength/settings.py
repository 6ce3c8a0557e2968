"""The settings of the learned tie strength; each can be set in the environment."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from contracts.settings import Settings


class StrengthSettings(Settings):
    """Environment prefix FEEDLOOP_STRENGTH_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_STRENGTH_", frozen=True, extra="forbid")

    weeks: int = Field(2, ge=1, le=26, description="most closed weeks before a moment that are learned from")
    fewest_contacts: int = Field(
        50, ge=1, description="pairs in contact, and pairs that were not, in those weeks below which nothing is learned"
    )
    most_rows: int = Field(
        500_000,
        ge=10_000,
        description="training rows of one model; of more, a share by a seeded hash of pair and moment",
    )
    rows_at_once: int = Field(
        250_000, ge=10, description="rows that are predicted at once, which bounds the driver's memory"
    )
    trees: int = Field(60, ge=1, le=100_000, description="boosting rounds")
    leaves: int = Field(8, ge=2, le=131_072, description="leaves of a tree; LightGBM grows no more")
    rows_per_leaf: int = Field(40, ge=1, description="fewest training rows of a leaf")
    learning_rate: float = Field(0.1, gt=0, le=1, description="of boosting")
    l2: float = Field(1.0, ge=0, description="penalty on the leaves' values")
    threads: int = Field(2, ge=1, le=1024, description="threads of LightGBM; the trees do not depend on it")
    seed: int = Field(7, ge=0, description="of the rows' sample and of LightGBM")
