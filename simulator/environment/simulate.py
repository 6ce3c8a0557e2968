"""The front door: simulate a log and write it to the lake."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.clock import DAY
from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.lake import TableManifest
from contracts.progress import stage
from contracts.tables import BLOCKS, FRIENDSHIPS, IMPRESSIONS, POSTS, SUBJECTS, TOPICS, USERS
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from simulator.environment import tables
from simulator.environment.behaviour import Latents
from simulator.environment.days import run_days
from simulator.environment.lookups import Graph
from simulator.environment.people import People, draw_people
from simulator.environment.phrases import TOPICS as TOPIC_PHRASES
from simulator.environment.policies import policy_of
from simulator.environment.policy import Policy
from simulator.environment.pools import PoolMaker
from simulator.environment.posts import PUBLIC, Posts, draw_posts, root_of
from simulator.environment.settings import ATTRIBUTION_US, EnvironmentSettings
from simulator.environment.truth import Truth
from simulator.environment.visits import Visitors
from simulator.environment.world import World
from simulator.environment.writing import LogWriter, TableWriter


def latents_of(settings: EnvironmentSettings, people: People, posts: Posts) -> Latents:
    """The hidden quantities of a population and its posts."""
    edges = people.edges
    users, count = len(people.registered_at_U), len(posts.author_P)
    return Latents(
        user_ids_U=tables.FIRST_USER_ID + np.arange(users), taste_UT=people.taste_UT, style_UA=people.style_UA,
        community_U=people.community_U, post_ids_P=tables.FIRST_POST_ID + np.arange(count), author_P=posts.author_P,
        origin_author_P=posts.author_P[root_of(posts.ancestors_PD, np.arange(count))], created_at_P=posts.created_at_P,
        kind_P=posts.kind_P, topic_P=posts.topic_P, public_P=posts.visibility_P == PUBLIC, quality_P=posts.quality_P,
        bait_P=posts.bait_P, talk_T=np.array([topic.talk for topic in TOPIC_PHRASES]),
        tie_key_E=edges.user_E * users + edges.friend_E, tie_E=edges.tie_E,
        examination_power=np.array(settings.examination_power), life_hours_by_kind=np.array(settings.life_hours),
        task_levels_A=np.array(settings.task_levels), tie_slopes_A=np.array(settings.tie_slopes),
        cascade=np.array(settings.examination == "cascade"), persistence=np.array(settings.persistence),
        stop_after_action=np.array(settings.stop_after_action), start_at=np.array(settings.start_at),
        tie_growth=np.array(settings.tie_growth), tie_half_life_days=np.array(settings.tie_half_life_days),
        contact_key_H=np.zeros(0, np.int64), contact_H=np.zeros(0),
    )  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """What there is before the first feed: people and their ties, all posts, and the hidden quantities of both."""

    people: People
    graph: Graph
    posts: Posts
    latents: Latents


@dataclass(frozen=True)
class Lived:
    """What the days left behind: the tables' manifests, the hidden quantities for all of them, who wrote and who came."""

    manifests: dict[str, TableManifest]
    latents: Latents
    policy_name: str
    writer: LogWriter
    visitors: Visitors


def draw(rng: np.random.Generator, settings: EnvironmentSettings) -> Drawn:
    """People and posts; `BadInput` when nobody writes or nobody has a friend."""
    people = draw_people(rng, settings)
    graph = Graph(settings.users, people.edges, people.blocks)
    posts = draw_posts(rng, settings, people, graph)
    if not len(posts.author_P):
        raise BadInput(
            f"{settings.users} users with {settings.posts_per_day} posts a day wrote nothing in {settings.days} days"
        )
    if not len(people.edges.user_E):
        raise BadInput(
            f"none of {settings.users} users has a friend with mean_friends {settings.mean_friends} and friend_sigma "
            f"{settings.friend_sigma}"
        )
    return Drawn(people, graph, posts, latents_of(settings, people, posts))


def live(rng: np.random.Generator, tables_to: TableWriter, settings: EnvironmentSettings, drawn: Drawn,
         policy: Policy | None = None) -> Lived:  # fmt: skip
    """Lets the days pass and writes all tables of the log; `BadInput` when nobody was shown anything."""
    maker = PoolMaker(settings, drawn.graph, drawn.posts)
    visitors = Visitors(rng, settings, drawn.people.registered_at_U)
    world = World(drawn.latents, drawn.graph)
    policy = policy or policy_of(settings, world)
    writer = LogWriter(rng, tables_to, settings, maker, world, policy.name)
    written = {
        USERS: tables.users_table(drawn.people), FRIENDSHIPS: tables.friendships_table(drawn.people, settings.end_at),
        BLOCKS: tables.blocks_table(drawn.people), POSTS: tables.posts_table(drawn.posts),
        TOPICS: tables.topics_table(settings.start_at),
    }  # fmt: skip
    manifests = {spec.name: tables_to.write(spec, table) for spec, table in written.items()}
    written.clear()
    manifests |= writer.write(run_days(rng, settings, maker, visitors, policy, world))
    if not manifests[IMPRESSIONS.name].rows:
        raise BadInput(
            f"{settings.users} users were shown nothing in {settings.days} days: requests_per_day is "
            f"{settings.requests_per_day}, live_days {settings.live_days}"
        )
    manifests[SUBJECTS.name] = tables_to.write(SUBJECTS, SUBJECTS.schema.empty_table())
    return Lived(manifests, world.latents, policy.name, writer, visitors)


def dataset_of(settings: EnvironmentSettings, lived: Lived, recorded: dict[str, Any]) -> Dataset:
    """The log's description; `recorded`: the settings that it names."""
    return Dataset(
        source="environment", start=settings.start_at, end=settings.end_at, warmup_us=settings.warmup_days * DAY,
        attribution_us=ATTRIBUTION_US, live_us=settings.live_us, tasks=TASK_NAMES, has_propensities=True,
        derived={"everything": "simulated; docs/environment.md states the formulas"},
        counts={name: manifest.rows for name, manifest in lived.manifests.items()}, settings=recorded,
    )  # fmt: skip


def simulate(workspace: Workspace, settings: EnvironmentSettings | None = None, policy: Policy | None = None) -> dict:
    """Writes a whole simulated log, its truth and its description into the workspace; returns the report.

    `policy`: serves the feeds, and is recorded, in place of the one that the settings name.
    The same settings give the same bytes.
    `BadInput` for settings that cannot be simulated, before anything is written.
    """
    settings = settings or EnvironmentSettings()
    settings.check()
    settings.split()
    rng = np.random.default_rng(settings.seed)
    with stage(f"people and posts: {settings.users} users, {settings.days} days, seed {settings.seed}"):
        drawn = draw(rng, settings)
    with stage("feeds and tables"):
        workspace.dataset_path.unlink(missing_ok=True)
        lived = live(rng, workspace.lake, settings, drawn, policy)
        Truth(lived.latents).save(workspace)
    dataset = dataset_of(
        settings, lived, settings.model_dump(mode="json") | ({"policy": policy.name} if policy else {})
    )
    dataset.save(workspace.dataset_path)
    return {
        "source": dataset.source, "policy": lived.policy_name, "counts": dataset.counts, "start": dataset.start,
        "end": dataset.end, "split": dataset.split().as_dict(),
        "rates_per_viewed_impression": lived.writer.rates(), "mean_pool": lived.writer.mean_pool(),
        "people_who_left": int(lived.visitors.left_U.sum()),
        "content_hashes": {name: manifest.content_hash for name, manifest in lived.manifests.items()},
    }  # fmt: skip
