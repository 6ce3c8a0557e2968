"""Settings of serving; each can be set in the environment."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from contracts.settings import Settings


class FeedSettings(Settings):
    """The feed pipeline; environment prefix FEEDLOOP_FEED_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_FEED_", frozen=True, extra="forbid")

    candidates: int = Field(300, ge=1, description="Candidates after the merge of the recall paths.")
    prerank_keep: int = Field(200, ge=1, description="Candidates that go on from the pre-ranker to the ranker.")
    friends_read: int = Field(300, ge=1, description="Most friends whose posts one request reads.")

    friend_share: float = Field(
        0.6, ge=0, le=1, description="Share of the places that friends' posts get while there are any."
    )
    author_gap: int = Field(
        2, ge=0, description="Places between two posts of one author, counted by the original's too."
    )
    author_decay: float = Field(0.8, gt=0, le=1, description="Factor per earlier post of the same author in the slate.")
    topic_decay: float = Field(0.92, gt=0, le=1, description="Factor per post of the same topic in the last places.")
    content_decay: float = Field(0.92, gt=0, le=1, description="Factor for the closest embedding in the last places.")
    similar_window: int = Field(4, ge=1, description="How many last places count for topic and content.")

    explore_first: int = Field(6, ge=0, description="The first place kept for exploration, from 0.")
    explore_every: int = Field(10, ge=0, description="Places from one exploration slot to the next; 0: none.")
    old_friend_days: float = Field(30, gt=0, description="Days without contact that make a friend an old friend.")
    new_friend_days: float = Field(14, gt=0, description="Days since the friendship that it counts as new.")
    new_post_hours: float = Field(12, gt=0, description="Hours that a post without many views counts as new.")
    new_post_views: float = Field(5, ge=0, description="Decayed views below which a post counts as new.")

    source_deadline_ms: float = Field(150, gt=0, description="Milliseconds that each recall path has.")
    hydrate_deadline_ms: float = Field(300, gt=0, description="Milliseconds that features have.")
    rank_deadline_ms: float = Field(300, gt=0, description="Milliseconds that each model has.")


class PublishSettings(Settings):
    """Publishing; environment prefix FEEDLOOP_PUBLISH_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_PUBLISH_", frozen=True, extra="forbid")

    chunk_keys: int = Field(2000, ge=1, description="Keys per MSET.")
    lock_s: int = Field(
        15, ge=1, description="Seconds after which a publisher that was killed no longer holds others up."
    )


class ApiSettings(Settings):
    """The HTTP API; environment prefix FEEDLOOP_API_."""

    model_config = SettingsConfigDict(env_prefix="FEEDLOOP_API_", frozen=True, extra="forbid")

    threads: int = Field(16, ge=1, le=1024, description="Threads that stages with a deadline run in.")
    redis_timeout_s: float = Field(2.0, gt=0, description="Seconds after which a call of Redis counts as failed.")
    poll_s: float = Field(1.0, gt=0, description="Seconds between looks for a newly published version.")
    behind_s: float = Field(
        5.0, ge=0, description="Seconds that another version than the published one may be served and count as ready."
    )
    feed_log_entries: int = Field(200_000, ge=1, description="Entries that the feed log in Redis keeps, about.")
