"""Training of recall: tune the merge on validation, judge on test, then train on everything and write the artifact."""

from pathlib import Path

import numpy as np

from contracts.dataset import Dataset
from contracts.files import canonical_json
from contracts.lake import content_hashes
from contracts.progress import stage
from contracts.tables import ACTIONS, BLOCKS, FRIENDSHIPS, IMPRESSIONS, POSTS, REQUESTS, USERS
from contracts.workspace import Workspace
from recall.evaluate import ask, empty_counts, feed_counts, summarize, tune_weights
from recall.log import PUBLIC, RecallLog, read_log
from recall.paths import TrainedPaths, train_paths
from recall.posts import PostColumns
from recall.runtime import CHANNELS_FILE, INDEX_FILE, POSTS_FILE, SETTINGS_FILE, TOWER_FILE, VIEWERS_FILE
from recall.settings import PATHS, RecallSettings, for_dataset
from recall.vector import VectorIndex


def train_recall(workspace: Workspace, settings: RecallSettings | None = None) -> dict:
    """Trains and judges all paths, writes the artifact "recall", and returns its metrics with the version.

    The merge's weights are tuned on the validation window over paths trained as of its start; recall is reported on
    the test window over paths trained as of its start; what is written is trained as of the log's end. `settings`:
    default `for_dataset`. Raises BadInput when there is no log, or nothing in it to learn from.
    """
    dataset = workspace.dataset()
    settings = settings or for_dataset(dataset)
    split = dataset.split()
    with stage("recall: reading the log"):
        log = read_log(workspace.lake)
    with stage("recall: tuning the merge on the validation window"):
        paths = train_paths(log, split.validation[0], settings, item_item=True)
        questions = _ask(log, paths, split.validation, dataset, settings.tuning_requests, settings)
        merge, _ = tune_weights(questions, settings)
        settings = settings.model_copy(update={"merge": merge})
        validation = summarize(questions, merge, settings.at)
    with stage("recall: measuring on the test window"):
        paths = train_paths(log, split.test[0], settings, item_item=True)
        questions = _ask(log, paths, split.test, dataset, settings.evaluated_requests, settings)
        test = summarize(questions, merge, settings.at)
    metrics: dict = {
        "kind": "discoveries" if log.discoveries else "actions", "validation": validation, "test": test,
        "weights": {path: merge.weights[path] for path in PATHS}, "split": split.as_dict(),
    }  # fmt: skip
    parents = content_hashes(workspace.lake, (USERS, FRIENDSHIPS, BLOCKS, POSTS, REQUESTS, IMPRESSIONS, ACTIONS))
    with stage("recall: training on the whole log, writing the artifact"):
        with workspace.artifacts.create("recall", parents=parents, settings=settings.model_dump()) as artifact:
            final = train_paths(log, dataset.end, settings)
            metrics["posts_indexed"] = write_files(artifact.path, log, final, dataset, settings)
            artifact.metrics = metrics
    return {"version": artifact.version, **metrics}


def _ask(
    log: RecallLog, paths: TrainedPaths, window: tuple[int, int], dataset: Dataset, limit: int, settings: RecallSettings
):
    rng = np.random.default_rng(settings.seed)
    return ask(log, paths, window, dataset.live_us, dataset.attribution_us, limit, settings, rng)


def write_files(folder: Path, log: RecallLog, paths: TrainedPaths, dataset: Dataset, settings: RecallSettings) -> int:
    """Writes what `recall.runtime.RecallRuntime` loads: public posts live at the log's end, and how many those are."""
    at = dataset.end
    counts = empty_counts(log, settings, at)
    feed_counts(counts, log, 0, int(np.searchsorted(log.positives.known_at_M, at)))
    live = np.flatnonzero(
        (log.visibility_N == PUBLIC) & (log.known_at_N < at) & (log.deleted_at_N > at)
        & (log.posts.created_at_N > at - dataset.live_us) & _public_chain(log)
    )  # fmt: skip
    live = live[np.argsort(log.posts.post_id_N[live], kind="stable")]
    posts, row = log.posts.take(live), counts.rows(log.posts.post_id_N[live])
    np.savez(folder / CHANNELS_FILE, user_id_U=paths.channels.user_id_U, offset_U1=paths.channels.offset_U1,
             channel_id_T=paths.channels.channel_id_T, score_T=paths.channels.score_T)  # fmt: skip
    np.savez(folder / POSTS_FILE, **{name: getattr(posts, name) for name in PostColumns.__dataclass_fields__},
             topic_N=log.topic_N[live], vector_ND=paths.vector_ND[live], all_P=counts.all_P[row],
             city_PC=counts.city_PC[row], channel_id_H=counts.channel_id_H, channel_H=counts.channel_H)  # fmt: skip
    towers = paths.towers
    np.savez(folder / VIEWERS_FILE, user_id_U=paths.user_id_U, vector_UD=paths.viewer_UD, channel_id_H=towers.channel_id_H,
             topic_T=towers.topic_T)  # fmt: skip
    towers.export_post_tower(folder / TOWER_FILE)
    VectorIndex.build(posts.post_id_N, paths.vector_ND[live], settings.vector.flat_below).write(folder / INDEX_FILE)
    record = {
        "settings": settings.model_dump(), "as_of": at, "anchor": counts.anchor, "live_us": dataset.live_us,
        "cities": list(log.cities), "content_dim": log.content_NE.shape[1],
    }  # fmt: skip
    (folder / SETTINGS_FILE).write_bytes(canonical_json(record))
    return len(live)


def _public_chain(log: RecallLog) -> np.ndarray:
    """Mask (N,): every origin is public too, so a share cannot carry a friend's post to strangers."""
    origin_NL = log.chain_NL
    return ((origin_NL < 0) | (log.visibility_N[np.maximum(origin_NL, 0)] == PUBLIC)).all(axis=1)
