"""The settings of the two rankers; each can be set in the environment."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from contracts.settings import Settings

# Far above what the logs feed, and low enough that each alone can be laid out in memory.
_WIDEST, _MOST_PARTS = 16_384, 1_024
_MOST_TRIES = 20
"""The last one's rate is a thousand-millionth of the first one's."""


class PrerankSettings(Settings):
    """Pre-ranker; environment prefix FEEDLOOP_PRERANK_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_PRERANK_", frozen=True, extra="forbid")

    trees: int = Field(150, ge=1, description="most boosting rounds")
    leaves: int = Field(15, ge=2, le=131_072, description="most leaves per tree")
    learning_rate: float = Field(0.05, gt=0)
    rows_per_leaf: int = Field(300, ge=1, description="fewest rows in a leaf")
    feature_share: float = Field(0.5, gt=0, le=1, description="share of the features that each tree may use")
    row_share: float = Field(0.7, gt=0, le=1, description="share of the rows that each tree is grown on")
    l2: float = Field(20.0, ge=0, description="penalty on leaf values")
    patience: int = Field(30, ge=1, description="rounds without a better validation NDCG before the end")
    threads: int = Field(1, ge=1, le=1024, description="CPU threads; waiting threads cost most on a busy machine")
    seed: int = Field(7, ge=0)


class _NetworkSettings(Settings):
    """What both rankers' networks and trainings have in common."""

    experts: int = Field(4, ge=1, le=_MOST_PARTS, description="experts of the mixture over tasks")
    expert_width: int = Field(
        64, ge=1, le=_WIDEST, description="units in an expert's hidden layer; its output has half as many"
    )
    tower_width: int = Field(32, ge=1, le=_WIDEST, description="units in a task tower's hidden layer")
    embedding_dim: int = Field(8, ge=1, le=_WIDEST, description="length of a category's embedding")
    category_codes: int = Field(256, ge=1, description="most codes of a category that get an embedding of their own")
    category_rows: int = Field(50, ge=1, description="fewest training rows for a code to get an embedding of its own")
    learning_rate: float = Field(3e-3, gt=0, description="peak rate of the first try")
    weight_decay: float = Field(1e-2, ge=0)
    clip_norm: float = Field(1.0, gt=0, description="largest global gradient norm")
    patience: int = Field(2, ge=1, description="epochs without a better validation figure before the end")
    rate_schedule: str = Field(
        "cosine", pattern="^(cosine|linear|constant|wsd)$", description="how the rate goes on after its warm-up"
    )
    decay_share: float = Field(0.2, gt=0, le=1, description="share of all steps over which wsd falls at the end")
    average_decay: float | None = Field(
        None, ge=0, lt=1, description="decay of a moving average of the weights, which is judged and kept; unset: none"
    )
    precision: str = Field("float64", pattern="^float(32|64)$", description="float64: equal under any layout")
    compute: str | None = Field(
        None, pattern="^bfloat16$", description="narrower type that layers compute in; sums and weights keep the precision"
    )
    exposure_clip: float | None = Field(
        None, gt=0, description="weigh rows by 1/propensity, clipped at this multiple of the mean; unset: equal weights"
    )
    threads: int = Field(
        1, ge=1, le=1024, description="CPU threads of each rank; more ranks gain more than more threads"
    )
    collective_timeout_s: float = Field(
        60.0, ge=1, le=86_400, description="seconds after which a silent rank counts as lost"
    )
    seed: int = Field(7, ge=0)


class SequenceSettings(_NetworkSettings):
    """Behaviour-sequence ranker; environment prefix FEEDLOOP_SEQUENCE_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_SEQUENCE_", frozen=True, extra="forbid")

    history: int = Field(24, ge=1, le=_WIDEST, description="most of a viewer's last actions that the ranker sees")
    candidates: int = Field(
        8, ge=1, le=_WIDEST, description="candidates beside one history; a longer slate is cut into several"
    )
    author_codes: int = Field(
        0,
        ge=0,
        description="most authors that get an embedding of their own; on a log of weeks they are learnt by heart",
    )
    author_rows: int = Field(20, ge=1, description="fewest training actions and candidates for an author to get one")
    layers: int = Field(2, ge=1, le=_MOST_PARTS)
    width: int = Field(32, ge=2, le=_WIDEST, description="channels of a token")
    heads: int = Field(4, ge=1, le=_MOST_PARTS, description="attention heads; width / heads is even")
    feed_forward: int = Field(
        64, ge=1, le=_WIDEST, description="channels of a feed-forward network, or of each of its experts"
    )
    sparse_experts: int = Field(
        4, ge=0, le=_MOST_PARTS, description="experts of each layer's feed-forward; 0: one dense network"
    )
    top_k: int = Field(2, ge=1, le=_MOST_PARTS, description="experts that a token goes to")
    dropout: float = Field(0.2, ge=0, lt=1)
    epochs: int = Field(10, ge=1, description="most passes over the training samples")
    batch_size: int = Field(128, ge=1, description="samples (a history with its candidates) of a global batch")
    tries: int = Field(
        2, ge=1, le=_MOST_TRIES, description="most tries, each at a third of the rate before, while a try overfits at once"
    )


class RankerSettings(_NetworkSettings):
    """Ranker; environment prefix FEEDLOOP_RANKER_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_RANKER_", frozen=True, extra="forbid")

    epochs: int = Field(12, ge=1, description="most passes over the training rows")
    batch_size: int = Field(2048, ge=1, description="rows of a global batch, over all ranks")
    tries: int = Field(
        3, ge=1, le=_MOST_TRIES, description="most tries, each at a third of the rate before, while a try overfits at once"
    )
