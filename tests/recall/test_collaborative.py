"""Collaborative recall over channels: discovery of subjects, new posts at once."""

import numpy as np
import pytest

from contracts.clock import DAY, HOUR
from recall.collaborative import rank_collaborative, train_channels
from recall.posts import PostColumns
from recall.settings import CollaborativeSettings

NOW = 20_000 * DAY
SETTINGS = CollaborativeSettings(factors=4, iterations=5, channels_per_user=20)


def circles(rng, channels_of_even, channels_of_odd):
    user_M = rng.integers(0, 40, 800)
    channel_M = np.where(user_M % 2 == 0, rng.choice(channels_of_even, 800), rng.choice(channels_of_odd, 800))
    return user_M, channel_M, np.ones(800), np.full(800, NOW - DAY)


@pytest.mark.parametrize("model", ["als", "item-item"])
def test_a_viewer_gets_the_channels_of_their_own_circle_and_subjects_only_where_new(rng, model):
    even, odd = ~np.arange(0, 12), ~np.arange(100, 112)
    user_M, channel_M, weight_M, at_M = circles(rng, even, odd)
    lists = train_channels(user_M, channel_M, weight_M, at_M, NOW, SETTINGS.model_copy(update={"model": model}), 7)
    hits = wanted = 0
    for user in range(0, 40, 2):
        channels, score = lists.of(user)
        had = set(channel_M[user_M == user].tolist())
        assert not had & set(channels.tolist())
        missing = set(even.tolist()) - had
        hits += len(missing & set(channels[: len(missing)].tolist()))
        wanted += len(missing)
        assert (np.diff(score) <= 1e-6).all()
    assert wanted > 10 and hits > 0.8 * wanted


def test_authors_already_liked_stay_in_the_list(rng):
    user_M, channel_M, weight_M, at_M = circles(rng, np.arange(10), np.arange(50, 60))
    lists = train_channels(user_M, channel_M, weight_M, at_M, NOW, SETTINGS, 7)
    channels, _ = lists.of(0)
    assert set(channel_M[user_M == 0].tolist()) & set(channels.tolist())


def test_the_same_interactions_give_the_same_bytes(rng):
    data = circles(rng, np.arange(10), np.arange(50, 60))
    first, second = (train_channels(*data, NOW, SETTINGS, 7) for _ in range(2))
    assert first.score_T.tobytes() == second.score_T.tobytes() and (first.channel_id_T == second.channel_id_T).all()


def test_an_unknown_viewer_has_no_channels(rng):
    lists = train_channels(*circles(rng, np.arange(10), np.arange(50, 60)), NOW, SETTINGS, 7)
    assert len(lists.of(12345)[0]) == 0


def test_a_post_of_this_second_comes_first_in_its_channel_and_one_channel_cannot_fill_the_list():
    ids = np.arange(12)
    channel_N = np.array([1] * 10 + [2, 3])
    created_N = NOW - np.array([*range(10), 5, 0], np.int64) * HOUR
    posts = PostColumns(ids, channel_N, channel_N, ids, created_N)
    settings = CollaborativeSettings(posts_per_channel=3)
    ranked = rank_collaborative(posts, np.array([1, 2]), np.array([1.0, 0.5]), NOW, 100, settings)
    assert ranked.posts.post_id_N.tolist() == [0, 1, 2, 10]
