"""Social recall: strength x freshness, and the chance of quiet friends."""

import numpy as np

from contracts.clock import DAY, HOUR
from recall.posts import NO_ID, PostColumns, channel_ids, group_ids
from recall.settings import SocialSettings
from recall.social import rank_social, tie_strength

NOW = 20_000 * DAY
SETTINGS = SocialSettings()


def columns(authors, ages_hours, first_id=1):
    n = len(authors)
    post_id_N = np.arange(first_id, first_id + n)
    none_N = np.full(n, NO_ID)
    author_id_N = np.array(authors, np.int64)
    return PostColumns(post_id_N, author_id_N, channel_ids(author_id_N, none_N), group_ids(post_id_N, none_N, none_N),
                       NOW - np.array(ages_hours, np.int64) * HOUR)  # fmt: skip


def test_of_two_posts_of_one_age_the_closer_friends_comes_first_and_of_one_friend_the_newer():
    posts = columns([1, 2, 2], [5, 5, 2])
    ranked = rank_social(posts, np.array([1, 2]), np.array([4.0, 1.0]), np.array([True, True]), NOW, 3, SETTINGS)
    assert ranked.posts.post_id_N.tolist() == [1, 3, 2]


def test_a_strangers_post_is_never_brought():
    ranked = rank_social(columns([1, 9, 9], [5, 1, 1]), np.array([1]), np.ones(1), np.array([True]), NOW, 10, SETTINGS)
    assert ranked.posts.author_id_N.tolist() == [1]


def test_friends_never_contacted_keep_their_share_of_places_beside_one_who_posts_all_day():
    posts = columns([1] * 100 + [2] * 5, [1] * 100 + [30] * 5)
    ranked = rank_social(posts, np.array([1, 2]), np.array([9.0, 1.0]), np.array([True, False]), NOW, 20, SETTINGS)
    assert (ranked.posts.author_id_N == 2).sum() == 3
    none = SocialSettings(quiet_share=0.0)
    ranked = rank_social(posts, np.array([1, 2]), np.array([9.0, 1.0]), np.array([True, False]), NOW, 20, none)
    assert (ranked.posts.author_id_N == 2).sum() == 0


def test_quiet_friends_fill_the_list_when_no_other_friend_posts():
    posts = columns([2] * 12, range(12))
    ranked = rank_social(posts, np.array([2]), np.ones(1), np.array([False]), NOW, 10, SETTINGS)
    assert ranked.posts.post_id_N.tolist() == list(range(1, 11))


def test_special_care_and_contacts_strengthen_a_tie_and_nothing_leaves_one():
    zero = np.zeros(3)
    strength_F = tie_strength(
        np.array([0, 5, 0]), np.array([0, 5, 0]), zero, zero, np.array([False, False, True]), SETTINGS
    )
    assert strength_F[0] == 1.0
    assert strength_F[1] > 1.0
    assert strength_F[2] == SETTINGS.special_care_boost


def test_an_original_and_its_share_by_two_friends_take_one_place():
    posts = columns([1, 2], [5, 1])
    root_N = np.array([NO_ID, 1])
    posts = PostColumns(posts.post_id_N, posts.author_id_N, posts.channel_id_N,
                        group_ids(posts.post_id_N, root_N, np.full(2, NO_ID)), posts.created_at_N)  # fmt: skip
    ranked = rank_social(posts, np.array([1, 2]), np.ones(2), np.ones(2, bool), NOW, 10, SETTINGS)
    assert ranked.posts.post_id_N.tolist() == [2]
