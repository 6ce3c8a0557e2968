"""The shapes of every request and answer of the HTTP API; all moments are UTC, all ids are integers of the log.

| call | answer |
|---|---|
| `GET /v1/feed?user_id=&n=&policy=` | `FeedResponse`; asking again gives the next page, since served posts do not return |
| `POST /v1/events` with `EventBatch` | 202 `EventsAccepted`, once all of it is durable |
| `GET /v1/users?n=&offset=&q=&seed=` | `UserList` for a viewer picker; `q`: part of a name or id; `seed`: a repeatable random draw |
| `GET /v1/users/{user_id}` | `Person` |
| `GET /v1/topics` | `TopicList` |
| `GET /healthz`, `GET /readyz` | `Health`; `/readyz` is 503 until a version is published and Redis answers |
| `GET /metrics` | Prometheus text |

Every failure is `ErrorResponse` with one sentence: 403 somebody else's post, 404 unknown user or post, or a post that is
not for this user, 405 another method, 413 a body of over 1 MB, 422 a value out of range, 503 Redis away or nothing published.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from contracts.clock import DAY, SECOND

ActionKind = Literal["view", "click", "like", "comment", "share", "dwell", "profile", "hide", "report"]
BlockKind = Literal["block", "hide_their_posts", "deny_my_posts"]
PathName = Literal["social", "collaborative", "popular", "vector", "pool"]
Tie = Literal["close_friend", "new_friend", "friend", "follow", "none"]
ReasonCode = Literal[
    "friend_engaged", "close_friend", "special_care", "friend", "new_friend", "popular_near_you", "popular",
    "because_you_read", "your_topic", "explore",
]  # fmt: skip

Id = Annotated[int, Field(ge=0, lt=2**63)]
"""Whatever the log can hold as an id."""
_LONGEST_LOOK_S = DAY // SECOND


class Person(BaseModel):
    """Someone to show a face and a name for."""

    user_id: int
    name: str = Field(description="The person's name, or 'User 42' where the log has none.")
    avatar_seed: str = Field(description="Draws the same face for the same person.")
    city: str | None = None
    friends: int | None = Field(None, description="How many friends; only in lists of users.")


class Topic(BaseModel):
    """What a post is about, in a word."""

    topic: int
    name: str


class Subject(BaseModel):
    """The thing that a post is about, such as an artist or a linked page."""

    subject_id: int
    name: str
    kind: str
    url: str | None = None


class Reason(BaseModel):
    """Why a post is in the feed; the first of an item's reasons is the strongest."""

    code: ReasonCode
    text: str = Field(description="A sentence part for people, such as 'Ana Silva and 2 other friends liked this'.")


class Engagement(BaseModel):
    """How many people acted on a post."""

    likes: int = 0
    comments: int = 0
    shares: int = 0


class Post(BaseModel):
    """A post as it is shown; `original` is the post that a share or a quote is of, which may have one of its own."""

    post_id: int
    author: Person
    kind: Literal["text", "photo", "video", "share", "quote", "link"]
    text: str = Field(description="Plain text, to be escaped by whoever shows it; may be empty for a bare share.")
    topic: Topic
    subject: Subject | None = None
    visibility: Literal["public", "friends", "list", "private"]
    created_at: str = Field(description="ISO 8601, UTC, on the server's clock (see FeedResponse.served_at).")
    age_s: float = Field(description="Seconds between created_at and served_at.")
    original: "Post | None" = None


class Item(Post):
    """A post at its place in a feed, with why it is there and what was predicted for it."""

    position: int = Field(description="Counts from 0 within this answer.")
    score: float
    probabilities: dict[str, float] = Field(description="Calibrated chance of each action; empty without the ranker.")
    paths: list[PathName] = Field(description="The recall paths that brought it.")
    reasons: list[Reason]
    tie: Tie = Field(description="What the author is to the viewer.")
    engagement: Engagement
    friends_engaged: list[Person] = Field(description="Up to three of the viewer's friends who acted on it.")
    explored: bool = Field(description="Holds a slot that is kept for exploration.")


class FeedResponse(BaseModel):
    """One page of a feed."""

    request_id: int = Field(description="Give it back in the events about this page.")
    viewer: Person
    served_at: str = Field(description="ISO 8601, UTC: the clock that ages and events are on; it may run behind today.")
    policy: str
    versions: dict[str, str] = Field(description="snapshot, features, recall, prerank, ranker, value_model.")
    degraded: list[str] = Field(description="Stages that fell back, in words; empty when all ran.")
    items: list[Item]
    exhausted: bool = Field(description="True when nothing more is there for this viewer now.")
    took_ms: float


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid")

    event_id: str = Field(
        min_length=1, max_length=64, description="Chosen by the client; a user's same id counts once."
    )
    user_id: Id = Field(description="Who acts.")


class ActionEvent(_Event):
    """Someone did something with a post. `hide` removes the post for good; `view` reports that it was looked at."""

    kind: ActionKind
    post_id: Id
    request_id: Id | None = Field(None, description="The feed that showed the post, where there was one.")
    value: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="dwell: seconds; view: milliseconds looked at; a day at most."
    )

    @model_validator(mode="after")
    def _within_a_day(self) -> "ActionEvent":
        most = _LONGEST_LOOK_S * (1000 if self.kind == "view" else 1)
        if self.value is not None and self.value > most:
            raise ValueError(f"the value of a {self.kind} is {most} at most, which is one day")
        return self


class BlockEvent(_Event):
    """Ends or restores contact: block (both ways), hide_their_posts, deny_my_posts."""

    kind: Literal["block", "unblock"]
    target_id: Id
    block_kind: BlockKind = "block"


class PostEvent(_Event):
    """Publishes a post; the answer holds its id. With `origin_post_id` it is a share (no text) or a quote."""

    kind: Literal["post"]
    text: str = Field("", max_length=2000)
    topic: int | None = Field(None, ge=0, lt=2**31, description="Required unless it is a share or a quote.")
    visibility: Literal["public", "friends", "list", "private"] = "friends"
    audience: list[Id] = Field(default_factory=list, max_length=1000, description="Who sees a post for a list.")
    origin_post_id: Id | None = None


class DeletePostEvent(_Event):
    """Takes one's own post down."""

    kind: Literal["delete_post"]
    post_id: Id


Event = Annotated[ActionEvent | BlockEvent | PostEvent | DeletePostEvent, Field(discriminator="kind")]


class EventBatch(BaseModel):
    """What happened, in order."""

    model_config = ConfigDict(extra="forbid")

    events: list[Event] = Field(min_length=1, max_length=500)


class EventsAccepted(BaseModel):
    """All events of the batch are durable and in force."""

    accepted: int = Field(description="How many counted now.")
    repeated: int = Field(description="How many had been counted before: the same event_id, or look.")
    posts: dict[str, int] = Field(default_factory=dict, description="event_id -> post_id of the posts made.")


class UserList(BaseModel):
    """Some of the people who can be a viewer."""

    users: list[Person]
    total: int


class TopicList(BaseModel):
    """The topics that a post can have, by name."""

    topics: list[Topic]


class Health(BaseModel):
    """Whether this process can answer."""

    status: Literal["ok", "not_ready"]
    version: str | None = Field(None, description="The published version in force.")
    detail: str | None = None


class ErrorResponse(BaseModel):
    """One clear sentence."""

    error: str
