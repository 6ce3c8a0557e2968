"""How much of what people went on to like each recall path, and their merge, would have brought in time.

At a moment t the paths rank only posts known and visible to the viewer before t. Relevant is what the viewer liked
afterwards: in a log of actions, posts acted on in [t, t + attribution window); in a log of discoveries, subjects first
posted about from t to the end of the window. Things are counted by group (one subject; one original with its shares):
recall@n = relevant groups among the first n distinct groups, over all relevant groups. Shapes: Q questions, G groups of
one question, P paths, C combinations of weights.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from contracts.tasks import ENGAGEMENTS
from recall.collaborative import rank_collaborative
from recall.log import PUBLIC, RecallLog
from recall.merge import ABSENT, fuse, merge_paths
from recall.paths import TrainedPaths
from recall.popular import PopularCounts, rank_popular
from recall.posts import PostColumns, Ranked, first_of_each, top
from recall.settings import PATHS, MergeSettings, RecallSettings
from recall.social import rank_social
from recall.vector import rank_vector
from recall.viewpoint import Ties, Viewpoints

COMPARED = ("item-item", "friends' counts")
WEIGHT_GRID = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Question:
    """A viewer at a moment: what each path ranked, the relevant groups, and how many of them were in the pool at all."""

    user_id: int
    at: int
    ranked: dict[str, Ranked]
    relevant_R: np.ndarray
    pool_groups: np.ndarray


def ask(log: RecallLog, paths: TrainedPaths, window: tuple[int, int], live_us: int, attribution_us: int, limit: int,
        settings: RecallSettings, rng: np.random.Generator) -> list[Question]:  # fmt: skip
    """Questions at `limit` sampled requests of [start, end) whose viewer liked something relevant afterwards."""
    views = Viewpoints(log, live_us)
    user_Q, at_Q = log.request
    inside = np.flatnonzero((at_Q >= window[0]) & (at_Q < window[1]))
    counts, fed = empty_counts(log, settings, window[0]), 0
    row_N = counts.rows(log.posts.post_id_N)
    chosen: list[tuple[int, int, np.ndarray, np.ndarray]] = []
    for request in rng.permutation(inside):
        user, at = int(user_Q[request]), int(at_Q[request])
        relevant_R = _relevant(log, views, user, at, window[1] if log.discoveries else at + attribution_us)
        if not len(relevant_R):
            continue
        visible = views.visible(user, at)
        if not log.discoveries:
            relevant_R = np.intersect1d(relevant_R, log.posts.group_id_N[visible])
        if len(relevant_R):
            chosen.append((at, user, relevant_R, visible))
        if len(chosen) == limit:
            break
    questions = []
    for at, user, relevant_R, visible in sorted(chosen, key=lambda entry: entry[:2]):
        until = int(np.searchsorted(log.positives.known_at_M, at))
        feed_counts(counts, log, fed, until)
        fed = until
        ranked = rank_all(log, views, paths, counts, row_N, user, at, visible, settings)
        questions.append(Question(user, at, ranked, relevant_R, np.unique(log.posts.group_id_N[visible])))
    return questions


def empty_counts(log: RecallLog, settings: RecallSettings, anchor: int) -> PopularCounts:
    """Popularity of the log's public posts before anything happened."""
    public = log.visibility_N == PUBLIC
    return PopularCounts(log.posts.post_id_N[public], log.posts.channel_id_N[public], log.cities,
                         settings.popular.half_life_us, anchor)  # fmt: skip


def feed_counts(counts: PopularCounts, log: RecallLog, first: int, last: int) -> None:
    """Adds the positives in rows [first, last) of the log, those of public posts."""
    new = log.positives.take(slice(first, last))
    row_M = counts.rows(log.posts.post_id_N[new.post_M])
    known_M = row_M >= 0
    counts.add(row_M[known_M], new.weight_M[known_M], log.city_code(new.user_id_M)[known_M], new.occurred_at_M[known_M])


def rank_all(log: RecallLog, views: Viewpoints, paths: TrainedPaths, counts: PopularCounts, count_row_N: np.ndarray,
             user_id: int, at: int, visible: np.ndarray, settings: RecallSettings) -> dict[str, Ranked]:  # fmt: skip
    """Every path's answer, and those compared with, for one viewer at one moment over the visible rows."""
    quota = settings.merge.quota
    posts = log.posts.take(visible)
    ties = views.ties(user_id, at, settings.social)
    public = visible[log.visibility_N[visible] == PUBLIC]
    public_posts = log.posts.take(public)
    topics, share = views.taste(user_id, at)
    share_N = np.zeros(len(public))
    if len(topics):
        place = np.minimum(np.searchsorted(topics, log.topic_N[public]), len(topics) - 1)
        share_N = np.where(topics[place] == log.topic_N[public], share[place], 0.0)
    city = int(log.city_code(np.array([user_id]))[0])
    score_N = counts.scores(count_row_N[public], city, at, settings.popular, share_N)
    ranked = {
        "social": rank_social(posts, ties.friend_id_F, ties.strength_F, ties.contacted_F, at, quota["social"], settings.social),
        "collaborative": rank_collaborative(posts, *paths.channels.of(user_id), at, quota["collaborative"], settings.collaborative),
        "popular": rank_popular(public_posts, score_N, quota["popular"]),
        "vector": rank_vector(public_posts, paths.vector_ND[public], paths.viewer_vector(user_id), quota["vector"]),
        "friends' counts": _friends_counts(log, views, ties, posts, at, settings.at),
    }  # fmt: skip
    if paths.item_item is not None:
        lists = paths.item_item.of(user_id)
        ranked["item-item"] = rank_collaborative(posts, *lists, at, settings.at, settings.collaborative)
    return ranked


def _relevant(log: RecallLog, views: Viewpoints, user_id: int, at: int, end: int) -> np.ndarray:
    later = views.liked_later(user_id, at, end)
    groups = np.unique(log.posts.group_id_N[log.positives.post_M[later]])
    if not log.discoveries:
        return groups
    mine = later[log.positives.kind_M[later] == "post"]
    groups = np.unique(log.posts.group_id_N[log.positives.post_M[mine]])
    before = views.liked_later(user_id, np.iinfo(np.int64).min, at)
    before = before[log.positives.kind_M[before] == "post"]
    return np.setdiff1d(groups, log.posts.group_id_N[log.positives.post_M[before]])


def _friends_counts(log: RecallLog, views: Viewpoints, ties: Ties, posts: PostColumns, at: int, n: int) -> Ranked:
    """To compare with: how many friends wrote about, liked, commented or shared the same thing."""
    liked = [views.liked(int(friend), at) for friend in ties.friend_id_F]
    rows = np.concatenate(liked) if liked else np.zeros(0, np.int64)
    kinds = log.positives.kind_M[rows]
    rows = rows[np.isin(kinds, ENGAGEMENTS) | (kinds == "post")]
    near = np.isin(posts.author_id_N, ties.friend_id_F)
    pairs = np.concatenate([
        np.stack([log.positives.user_id_M[rows], log.posts.group_id_N[log.positives.post_M[rows]]], axis=1),
        np.stack([posts.author_id_N[near], posts.group_id_N[near]], axis=1),
    ])  # fmt: skip
    groups, count = np.unique(np.unique(pairs, axis=0)[:, 1], return_counts=True)
    if not len(groups):
        return Ranked.empty()
    place = np.minimum(np.searchsorted(groups, posts.group_id_N), len(groups) - 1)
    count_N = np.where(groups[place] == posts.group_id_N, count[place], 0)
    return top(posts.take(count_N > 0), count_N[count_N > 0], n)


def recall_of(posts: PostColumns, relevant_R: np.ndarray, n: int) -> float:
    """Share (0 to 1) of the relevant groups among the first `n` distinct groups of ranked posts."""
    groups = posts.group_id_N[first_of_each(posts.group_id_N, 1)][:n]
    return float(np.isin(relevant_R, groups).mean())


def tune_weights(questions: list[Question], settings: RecallSettings) -> tuple[MergeSettings, float]:
    """The merge with the weights that bring most of the relevant among the first `settings.at`, and that recall.

    Social has weight 1, the others every combination of `WEIGHT_GRID`; of equal ones the first in the grid's order.
    """
    if not questions:
        return settings.merge, float("nan")
    others = [path for path in PATHS if path != "social"]
    combinations = [
        dict(zip(others, weights), social=1.0) for weights in itertools.product(WEIGHT_GRID, repeat=len(others))
    ]
    weight_PC = np.array([[combination[path] for combination in combinations] for path in PATHS])
    total_C = np.zeros(len(combinations))
    for question in questions:
        place_GP, relevant_G = _places(question, settings.merge.quota)
        score_GC = fuse(place_GP, weight_PC, settings.merge.constant)
        if len(score_GC) > settings.at:
            cut_C = -np.partition(-score_GC, settings.at - 1, axis=0)[settings.at - 1]
            hits_C = ((score_GC >= cut_C) & relevant_G[:, None]).sum(axis=0)
        else:
            hits_C = np.full(len(combinations), relevant_G.sum())
        total_C += hits_C / len(question.relevant_R)
    best = int(np.argmax(total_C))
    return settings.merge.model_copy(update={"weights": combinations[best]}), float(total_C[best] / len(questions))


def _places(question: Question, quota: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    groups_P = [ranked.posts.group_id_N[first_of_each(ranked.posts.group_id_N, 1)][: quota[path]]
                for path, ranked in ((path, question.ranked[path]) for path in PATHS)]  # fmt: skip
    groups = np.unique(np.concatenate(groups_P))
    place_GP = np.full((len(groups), len(PATHS)), ABSENT)
    for p, found in enumerate(groups_P):
        place_GP[np.searchsorted(groups, found), p] = np.arange(len(found))
    return place_GP, np.isin(groups, question.relevant_R)


def summarize(questions: list[Question], merge: MergeSettings, n: int) -> dict:
    """Mean recall@n per path, merged and compared with, standard errors, paired gains, and what any path could bring."""
    names = [*PATHS, "merged", *COMPARED]
    found: dict[str, list[float]] = {name: [] for name in names}
    ceiling, in_pool = [], []
    for question in questions:
        own = {path: question.ranked[path] for path in PATHS}
        merged = merge_paths(own, merge)
        for name in names:
            posts = merged.posts if name == "merged" else question.ranked.get(name, Ranked.empty()).posts
            found[name].append(recall_of(posts, question.relevant_R, n))
        union = np.concatenate([ranked.posts.group_id_N for ranked in own.values()])
        ceiling.append(np.isin(question.relevant_R, union).mean())
        in_pool.append(np.isin(question.relevant_R, question.pool_groups).mean())
    return {
        "questions": len(questions), "at": n,
        "relevant_per_question": _mean([len(question.relevant_R) for question in questions]),
        "recall": {name: _mean(values) for name, values in found.items()},
        "standard_error": {name: _error(values) for name, values in found.items()},
        "merged_minus": {
            name: {"mean": _mean(gain), "standard_error": _error(gain)}
            for name in ("popular", "social", *COMPARED)
            for gain in [np.subtract(found["merged"], found[name])]
        },
        "candidate_ceiling": _mean(ceiling), "relevant_in_pool": _mean(in_pool),
    }  # fmt: skip


def _mean(values) -> float | None:
    return round(float(np.mean(values)), 6) if len(values) else None


def _error(values) -> float | None:
    return round(float(np.std(values, ddof=1) / np.sqrt(len(values))), 6) if len(values) > 1 else None
