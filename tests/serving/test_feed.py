"""The pipeline's promises about order: spacing by origin, exploration slots, ties, fallbacks, declared columns."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from contracts.artifacts import ArtifactStore
from contracts.clock import DAY, HOUR
from contracts.errors import BadInput
from contracts.features import INPUT_NAMES
from contracts.files import canonical_json
from contracts.tasks import TASK_NAMES
from serving.feed import POLICIES, VALUE_MODEL_FILE, Query, ValueModel, pool_policy, serving_policy
from serving.feed.policies import deadlines
from serving.feed.timing import Punctual
from serving.settings import FeedSettings
from serving.snapshot import snapshot
from serving.store.memory import MemoryStore
from serving.store.protocol import StoreDown
from tests.serving.world import END, LIVE, LinearModel, World, linear_models, random_world


class Fixed:
    """Stands in for both models: the score is read off a table of post ages in hours."""

    def __init__(self, best_first_hours: list[float]):
        self.hours = best_first_hours

    def score(self, inputs_NF: np.ndarray) -> np.ndarray:
        age_N = np.round(inputs_NF[:, INPUT_NAMES.index("post_age_hours")], 3)
        return np.array([-self.hours.index(age) if age in self.hours else -99 for age in age_N.tolist()], float)

    def probabilities(self, inputs_NF: np.ndarray) -> np.ndarray:
        probability_NT = np.zeros((len(inputs_NF), len(TASK_NAMES)))
        probability_NT[:, 0] = 1 + self.score(inputs_NF) / 100
        return probability_NT


@pytest.fixture(scope="module")
def busy(tmp_path_factory) -> MemoryStore:
    """A random world as of its end; tests only read it."""
    rng = np.random.default_rng(20240601)
    return snapshot(random_world(rng).write(tmp_path_factory.mktemp("busy")), END)


def fixed_models(hours: list[float]):
    return replace(linear_models(), prerank=Fixed(hours), ranker=Fixed(hours), value=ValueModel({"click": 1.0}))


def feed_of(world: World, tmp_path, models, size: int = 8, settings: FeedSettings | None = None):
    store = snapshot(world.write(tmp_path), END)
    pool = np.array([row["post_id"] for row in world.rows["posts"]])
    return pool_policy("full", models, LIVE, settings).run(Query(1, END, size, pool_N=pool), store)


def people(count: int, *, strangers: tuple[int, ...] = ()) -> World:
    """Users 1 to `count`; user 1 is a friend of all but the strangers."""
    world = World()
    for user_id in range(1, count + 1):
        world.user(user_id)
        if user_id > 1 and user_id not in strangers:
            world.friend(1, user_id)
    return world


def test_spacing_counts_the_originals_author_not_only_the_sharers(tmp_path):
    world = people(9)
    world.post(100, 2, END - 20 * HOUR)
    for post_id, sharer in zip(range(101, 104), (3, 4, 5)):  # three different people share posts of user 2
        world.post(post_id + 100, 2, END - 30 * HOUR, topic=post_id % 3)
        world.post(post_id, sharer, END - (post_id - 90) * HOUR, origin_post_id=post_id + 100, topic=post_id % 3)
    for post_id, author in zip(range(110, 114), (6, 7, 8, 9)):
        world.post(post_id, author, END - (post_id - 90) * HOUR, topic=5)
    feed = feed_of(world, tmp_path, fixed_models([11.0, 12.0, 13.0, 20.0]), size=7)
    roots = feed.shown["root_author_id"].tolist()
    for place, root in enumerate(roots[:5]):
        assert root not in roots[max(0, place - 2) : place], roots


def test_one_original_takes_one_slot(tmp_path):
    world = people(6)
    world.post(100, 2, END - 20 * HOUR)
    for post_id, sharer in zip((101, 102, 103), (3, 4, 5)):
        world.post(post_id, sharer, END - HOUR, origin_post_id=100)
    assert len(feed_of(world, tmp_path, linear_models())) == 1


def test_the_exploration_slot_is_the_place_that_the_person_sees(tmp_path):
    world = people(20, strangers=(19,))
    for at, post_id in enumerate(range(100, 112)):
        world.post(post_id, 2 + at, END - (30 + at) * HOUR, topic=at % 5)
        world.act(1, post_id, "like", END - 29 * HOUR - at)
    world.friend(1, 19, since=END - 2 * DAY)
    world.post(200, 19, END - 100 * HOUR)  # a new friend's old post, last by score
    settings = FeedSettings(explore_first=3, explore_every=10, new_post_hours=1, old_friend_days=400)
    hours = [30.0 + at for at in range(12)] + [100.0]
    feed = feed_of(world, tmp_path, fixed_models(hours), size=8, settings=settings)
    assert feed.post_id_K[3] == 200 and feed.shown["explored"].tolist() == [False] * 3 + [True] + [False] * 4


def test_strangers_best_posts_leave_friends_their_share_of_every_page(tmp_path):
    strangers = tuple(range(10, 40))
    world = people(39, strangers=strangers)
    for at, author in enumerate((*strangers, *range(2, 10))):  # the friends' posts are older than all of the strangers'
        world.post(100 + at, author, END - (10 + at) * HOUR, topic=at % 6)
    hours = [10.0 + at for at in range(38)]
    for share, friends in ((0.6, [1, 2, 2, 3, 3, 4, 5, 5]), (0.0, [0] * 8)):
        settings = FeedSettings(friend_share=share, explore_every=0)
        feed = feed_of(world, tmp_path / str(share), fixed_models(hours), settings=settings)
        assert np.cumsum(np.isin(feed.shown["author_id"], range(2, 10))).tolist() == friends


def test_the_order_of_the_pool_does_not_move_the_feed(busy, rng):
    pool = np.arange(100, 220)
    pipeline = pool_policy("full", linear_models(), LIVE)
    feeds = [
        pipeline.run(Query(2, END, 8, pool_N=order), busy).post_id_K.tolist()
        for order in (pool, pool[::-1], rng.permutation(pool))
    ]
    assert feeds[0] and feeds[0] == feeds[1] == feeds[2]


def test_equal_scores_come_newest_first_then_by_larger_id(tmp_path):
    world = people(5)
    for post_id, author, hour in ((100, 2, 5), (103, 3, 2), (101, 4, 2), (102, 5, 9)):
        world.post(post_id, author, END - hour * HOUR)
    store = snapshot(world.write(tmp_path), END)

    class Equal(LinearModel):
        def score(self, inputs_NF):
            return np.zeros(len(inputs_NF))

    models = replace(linear_models(), prerank=Equal())
    feed = pool_policy("prerank", models, LIVE).run(Query(1, END, pool_N=np.arange(100, 104)), store)
    assert feed.post_id_K.tolist() == [103, 101, 100, 102]


class Slow(LinearModel):
    def probabilities(self, inputs_NF):
        time.sleep(0.5)
        return super().probabilities(inputs_NF)


class Broken(LinearModel):
    def probabilities(self, inputs_NF):
        raise RuntimeError("no model")


@pytest.mark.parametrize(("ranker", "said"), [(Slow(), "rank: later than 50 ms"), (Broken(), "rank: RuntimeError")])
def test_a_late_or_broken_ranker_leaves_the_pre_rank_order_and_says_so(busy, ranker, said):
    settings = FeedSettings(rank_deadline_ms=50, hydrate_deadline_ms=5000, source_deadline_ms=5000)
    with ThreadPoolExecutor(4) as executor:
        runner = Punctual(executor, {**deadlines(settings), "prerank": 5e3, "value": 5e3})
        models = replace(linear_models(), ranker=ranker)
        feed = serving_policy("full", models, LIVE, settings=settings, runner=runner).run(Query(2, END, 8), busy)
        whole = serving_policy("full", replace(models, ranker=None), LIVE, settings=settings, runner=runner).run(
            Query(2, END, 8), busy
        )
    assert feed.degraded == (said,) and whole.degraded == ()
    assert len(feed) and feed.post_id_K.tolist() == whole.post_id_K.tolist()


def test_a_broken_source_costs_only_its_own_posts_but_a_dead_store_costs_the_feed(busy):

    class Away:
        name = "popular"

        def __init__(self, error):
            self.error = error

        def retrieve(self, run):
            raise self.error

    with ThreadPoolExecutor(4) as executor:
        pipeline = serving_policy(
            "full", linear_models(), LIVE, runner=Punctual(executor, {"social": 5e3, "features": 5e3})
        )
        feed = replace(pipeline, sources=[*pipeline.sources, Away(KeyError("x"))]).run(Query(2, END, 8), busy)
        assert len(feed) and feed.degraded == ("popular: KeyError",)
        with pytest.raises(StoreDown):
            replace(pipeline, sources=[Away(StoreDown("away"))]).run(Query(2, END, 8), busy)


def test_replay_never_falls_back_in_silence(busy):
    with pytest.raises(RuntimeError, match="no model"):
        pool_policy("full", replace(linear_models(), ranker=Broken()), LIVE).run(
            Query(2, END, pool_N=np.arange(100, 220)), busy
        )


def test_a_pipeline_whose_stage_reads_what_nobody_adds_is_refused():
    pipeline = pool_policy("full", linear_models(), LIVE)
    with pytest.raises(ValueError, match="stage rerank of policy full reads score"):
        replace(pipeline, scorers=[])


def test_a_task_that_weighs_nothing_is_named():
    assert ValueModel({"click": 1.0, "like": 0.0}).unused(("click", "like", "hide")) == ("like", "hide")


def test_a_closer_tie_never_makes_a_post_less_welcome():
    inputs_NF = np.zeros((2, len(INPUT_NAMES)))
    inputs_NF[1, INPUT_NAMES.index("tie_contacts_180d")] = 9
    for hide in (0.0, 1.0):
        probability_NT = np.tile(np.array([0.2, 0, 0, 0, hide]), (2, 1))
        far, close = ValueModel.for_tasks(TASK_NAMES).values(probability_NT, inputs_NF)
        assert far == close
        far, close = replace(ValueModel.for_tasks(TASK_NAMES), tie_exponent=1.0).values(probability_NT, inputs_NF)
        assert close > far


def test_a_value_model_is_loaded_as_written_and_a_wrong_one_refused(tmp_path):
    store = ArtifactStore(tmp_path)
    model = ValueModel({"click": 1.5}, tie_exponent=0.5)
    for weights, fits in ((model.weights, True), ({"dance": 1.0}, False)):
        with store.create("value_model") as artifact:
            (artifact.path / VALUE_MODEL_FILE).write_bytes(
                canonical_json({**model.as_dict(), "weights": weights, "note": "tuned"})
            )
        if fits:
            assert ValueModel.load(store.load("value_model")) == model
        else:
            with pytest.raises(BadInput, match="dance"):
                ValueModel.load(store.load("value_model"))


def test_every_policy_makes_a_feed_and_random_is_repeatable(busy):
    pool = np.arange(100, 220)
    for name in POLICIES:
        twice = [
            pool_policy(name, linear_models(), LIVE, rng=np.random.default_rng(1)).run(
                Query(2, END, 5, pool_N=pool), busy
            )
            for _ in range(2)
        ]
        assert len(twice[0]) == 5 and twice[0].post_id_K.tolist() == twice[1].post_id_K.tolist()
