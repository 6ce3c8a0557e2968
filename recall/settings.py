"""The settings of every recall path, typed, with units; times that depend on a log scale with its posts' life."""

from pydantic import BaseModel, ConfigDict, Field

from contracts.clock import HOUR
from contracts.dataset import Dataset

PATHS = ("social", "collaborative", "popular", "vector")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SocialSettings(_Frozen):
    """Tie strength x freshness."""

    recent_weight: float = Field(1.0, description="weight of log1p(contacts, half-life 14 days)")
    lasting_weight: float = Field(0.5, description="weight of log1p(contacts, half-life 180 days)")
    back_weight: float = Field(0.25, description="weight of log1p(contacts of the friend towards the viewer, 180 days)")
    mutual_weight: float = Field(0.1, description="weight of log1p(mutual friends)")
    special_care_boost: float = Field(2.0, description="factor on the strength of a special-care friend")
    strength_exponent: float = Field(1.0, description="exponent of the strength in the score")
    freshness_half_life_us: int = Field(36 * HOUR, description="microseconds after which a post's freshness halves")
    quiet_share: float = Field(0.15, ge=0, le=0.5, description="share of places for friends never contacted")


class CollaborativeSettings(_Frozen):
    """Implicit-feedback factors of user x channel."""

    model: str = Field("als", pattern="^(als|item-item)$", description="als or item-item")
    factors: int = Field(64, description="width of the factors (als)")
    iterations: int = Field(12, description="alternating least squares sweeps (als)")
    regularization: float = Field(0.05, description="als")
    alpha: float = Field(10.0, description="confidence of one unit of interaction (als)")
    neighbours: int = Field(100, description="neighbours kept per channel (item-item)")
    channels_per_user: int = Field(200, description="length of a user's list")
    posts_per_channel: int = Field(3, description="live posts that one channel may bring")
    interaction_half_life_us: int = Field(0, description="decay of an interaction's weight, microseconds; 0: none")
    freshness_half_life_us: int = Field(36 * HOUR, description="microseconds after which a post's freshness halves")


class PopularSettings(_Frozen):
    """Decayed engagement, with back-off from the city to everybody and from the post to its channel."""

    half_life_us: int = Field(24 * HOUR, description="microseconds after which an engagement counts half")
    city_weight: float = Field(2.0, description="weight of engagements from the viewer's own city")
    topic_weight: float = Field(1.0, description="weight of the viewer's share of taste in the post's topic")
    channel_weight: float = Field(0.1, description="weight of the channel's engagement, which a new post starts from")


class VectorSettings(_Frozen):
    """The two-tower model."""

    dim: int = Field(32, description="width of the vectors")
    epochs: int = Field(4, description="passes over the positives")
    batch: int = Field(1024, description="positives per step; each is a negative of the others")
    learning_rate: float = Field(0.01, description="Adam's")
    temperature: float = Field(0.1, description="divides the cosine")
    history: int = Field(30, description="earlier positives that the viewer's tower sees")
    logq: bool = Field(True, description="correct in-batch negatives for how often a post is sampled")
    id_dropout: float = Field(0.2, description="share of ids hidden in training, so unknown ids get a trained default")
    flat_below: int = Field(50_000, description="posts below which the index is exact")
    max_positives: int = Field(250_000, description="the newest so many positives are trained on")


class MergeSettings(_Frozen):
    """Weighted reciprocal-rank fusion: sum over paths of weight / (constant + place)."""

    weights: dict[str, float] = Field(default_factory=lambda: dict.fromkeys(PATHS, 1.0))
    quota: dict[str, int] = Field(default_factory=lambda: dict.fromkeys(PATHS, 200), description="posts per path")
    constant: float = Field(20.0, description="places after which a path's say halves")
    total: int = Field(500, description="candidates after the merge")


class RecallSettings(_Frozen):
    """All of recall."""

    social: SocialSettings = SocialSettings()
    collaborative: CollaborativeSettings = CollaborativeSettings()
    popular: PopularSettings = PopularSettings()
    vector: VectorSettings = VectorSettings()
    merge: MergeSettings = MergeSettings()
    evaluated_requests: int = Field(800, description="test requests at which recall is measured")
    tuning_requests: int = Field(400, description="validation requests on which the merge is tuned")
    at: int = Field(100, description="retrieved places that recall counts")
    seed: int = 7


def for_dataset(dataset: Dataset) -> RecallSettings:
    """Defaults whose half-lives are shares of how long this log's posts stay candidates."""
    live = dataset.live_us
    return RecallSettings(
        social=SocialSettings(freshness_half_life_us=live // 4),
        collaborative=CollaborativeSettings(freshness_half_life_us=live // 4),
        popular=PopularSettings(half_life_us=live // 6),
    )
