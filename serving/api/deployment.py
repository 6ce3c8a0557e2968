"""What answers requests: one published version with its models, kept current with live events and new versions."""

import sys
import threading
import time
import traceback
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import redis

from contracts.clock import now as wall_clock
from contracts.errors import BadInput
from contracts.features import FEATURE_VERSION
from contracts.progress import say
from contracts.workspace import Workspace
from recall.runtime import RecallRuntime
from serving.feed.live_recall import LiveRecall
from serving.feed.models import load_models
from serving.feed.pipeline import FeedPipeline
from serving.feed.policies import Models, deadlines, serving_policy
from serving.feed.side_effects import Served
from serving.feed.timing import Punctual
from serving.live_events import EventLog, events_after
from serving.settings import ApiSettings, FeedSettings
from serving.store.families import key
from serving.store.packing import Profile, unpack_profile
from serving.store.protocol import Store, StoreDown
from serving.store.redis import RedisStore, version_in_force
from serving.versions import FIRST, Meta, pointers, read_meta

SERVED_POLICIES = ("full", "prerank", "popularity", "chronological")


@dataclass
class Deployment:
    """One version, ready: its store, models, policies by name, what topics and people are called."""

    meta: Meta
    store: RedisStore
    models: Models
    policies: dict[str, FeedPipeline]
    events: EventLog
    topics: dict[int, str]
    people: list[Profile]
    followed: str = FIRST
    by_id: dict[int, Profile] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {profile.user_id: profile for profile in self.people}

    @property
    def now(self) -> int:
        """The moment that feeds are made for (UTC us): this machine's clock, moved to go on from the log's end."""
        return wall_clock() + self.meta.clock_offset_us

    @property
    def versions(self) -> dict[str, str]:
        """All that decides what a feed shows."""
        return {"snapshot": self.meta.version, "features": self.meta.feature_version, **self.models.versions}

    def follow(self, client: redis.Redis) -> int:
        """Takes the stream's new events into recall; returns how many."""
        followed = 0
        while entries := events_after(client, self.followed):
            for stream_id, log_id, known_at, event in entries:
                if self.meta.lacks(stream_id, log_id, known_at) and isinstance(self.models.recall, LiveRecall):
                    profile = self.by_id.get(event.user_id)
                    self.models.recall.follow(event, profile.city or None if profile else None)
                self.followed = stream_id
                followed += 1
        return followed


def deploy(workspace: Workspace, client: redis.Redis, version: str, executor: Executor, settings: ApiSettings,
           feed_settings: FeedSettings) -> Deployment:  # fmt: skip
    """Loads all of a published version. `BadInput` when its models are gone or were made by other code."""
    meta = read_meta(client, version)
    if meta.feature_version != FEATURE_VERSION:
        raise BadInput(
            f"version {version} holds features of version {meta.feature_version}, this code computes {FEATURE_VERSION}: publish again"
        )
    store = RedisStore(client, version)
    models = load_models(workspace, meta.artifacts)
    if isinstance(models.recall, RecallRuntime):
        models = replace(models, recall=LiveRecall(models.recall))
    runner = Punctual(executor, deadlines(feed_settings))
    versions = {"log": meta.log_id, "snapshot": version, **models.versions}
    policies = {
        name: serving_policy(
            name, models, meta.live_us, settings=feed_settings, runner=runner,
            side_effects=[Served(versions, meta.live_us, settings.feed_log_entries)],
        )
        for name in SERVED_POLICIES
    }  # fmt: skip
    people, topics = _directory(store)
    deployment = Deployment(meta, store, models, policies, EventLog(client, meta.log_id, meta.live_us), topics, people)
    deployment.follow(client)
    return deployment


def _directory(store: Store) -> tuple[list[Profile], dict[int, str]]:
    users, topics = store.get_many([key("list", "users"), key("list", "topics")])
    ids = np.frombuffer(users or b"", "<i8").tolist()
    profiles = store.get_many([key("user", user_id) for user_id in ids])
    names = msgspec.msgpack.decode(topics, type=dict[int, str]) if topics else {}
    return [unpack_profile(one) for one in profiles if one is not None], names


class Deployments:
    """The deployment in force; a thread follows the stream of events and looks for newly published versions."""

    def __init__(self, workspace: Workspace, client: redis.Redis, executor: Executor, settings: ApiSettings,
                 feed_settings: FeedSettings):  # fmt: skip
        self._parts = (workspace, client, executor, settings, feed_settings)
        self._client, self._settings = client, settings
        self._deployment: Deployment | None = None
        self._failure: StoreDown | None = None
        self._behind: tuple[str, float] | None = None
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._keep_current, name="deployments", daemon=True)

    def start(self) -> None:
        """Loads the version in force, if there is one yet, and begins to watch."""
        self._look()
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._stop.set()
        self._thread.join(timeout=10)

    def current(self) -> Deployment:
        """The deployment in force; `StoreDown` says why there is none."""
        if self._deployment is None:
            self._look()
        deployment = self._deployment
        if deployment is None:
            raise self._failure or StoreDown("nothing is published yet: run `feedloop publish` first")
        return deployment

    def ready(self) -> Deployment:
        """As `current`, after Redis has answered and confirmed that what is served is what was published.

        While a new version loads, the one before counts for `behind_s` seconds; then `StoreDown` names both.
        """
        version = version_in_force(self._client)
        deployment = self.current()
        behind_s = self._behind_s(version)
        if behind_s is not None and behind_s >= self._settings.behind_s:
            why = f": {self._failure}" if self._failure is not None else ""
            raise StoreDown(f"version {version} is published, but {deployment.meta.version} is served{why}")
        return deployment

    def _behind_s(self, version: str) -> float | None:
        """Seconds since `version` was first seen in force while another was served; None when it is served."""
        deployment, behind = self._deployment, self._behind  # other threads may change both meanwhile
        if deployment is None or deployment.meta.version == version:
            self._behind = None
            return None
        if behind is None or behind[0] != version:
            behind = self._behind = version, time.monotonic()
        return time.monotonic() - behind[1]

    def _keep_current(self) -> None:
        while not self._stop.wait(self._settings.poll_s):
            # Nothing may end this thread: without it no new version and no new post would ever be served.
            try:
                self._look()
                if (deployment := self._deployment) is not None:
                    deployment.follow(self._client)
            except StoreDown:
                pass  # the next turn tries again; requests say so meanwhile
            except Exception:
                traceback.print_exc(file=sys.stderr)

    def _look(self) -> None:
        """Loads a newly published version; until it is loaded, and if it cannot be, the one before goes on serving.

        That ends when a further one is published, as Redis holds no more than two.
        """
        with self._turn:
            try:
                version = version_in_force(self._client)
                if self._deployment is None or self._behind_s(version) is not None:
                    workspace, client, executor, settings, feed_settings = self._parts
                    self._deployment = deploy(workspace, client, version, executor, settings, feed_settings)
                    say(f"serving version {version}")
                self._failure = None
            except StoreDown as error:
                self._failure = error
            except BadInput as error:
                self._fail(str(error))
            except Exception as error:  # whatever a broken model raises, the version before goes on serving
                if self._fail(f"loading it failed with {type(error).__name__}"):
                    traceback.print_exc(file=sys.stderr)

    def _fail(self, reason: str) -> bool:
        """Remembers why the published version cannot be served; False when that was known already."""
        sentence = f"the published version cannot be served: {reason}"
        new = self._failure is None or str(self._failure) != sentence
        self._failure = StoreDown(sentence)
        if new:
            say(sentence)
        if self._deployment is not None and self._deployment.meta.version not in pointers(self._client):
            self._deployment = None  # swept from Redis, and no event reaches it any more
        return new
