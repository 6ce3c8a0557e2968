"""The two-tower model: sampling bias corrected, deterministic, the same in ONNX as in torch."""

import numpy as np
import pytest
import torch

from recall.settings import VectorSettings
from recall.two_tower import PostInputs, in_batch_loss, train_towers
from recall.vector import PostTower


def preferences(logq: bool) -> np.ndarray:
    """Cosines (2, posts) of two kinds of viewers with posts, where one post is in everybody's way.

    Both kinds like post 0 four times as often as any other, since they meet it that often; even viewers like the even
    posts as much each time they meet them, odd viewers the odd ones.
    """
    rng = np.random.default_rng(3)
    users, posts = 40, 9
    user_M = rng.integers(0, users, 6000)
    own_M = 1 + 2 * rng.integers(0, 4, len(user_M)) + (user_M % 2 == 0)
    post_M = np.where(rng.random(len(user_M)) < 0.5, 0, own_M)
    inputs = PostInputs(
        np.arange(posts), np.zeros(posts, np.int64), np.zeros(posts, np.int64), np.zeros((posts, 0), np.float32)
    )
    settings = VectorSettings(dim=8, epochs=6, batch=256, history=1, logq=logq, id_dropout=0.0, learning_rate=0.02)
    towers = train_towers(user_M, post_M, np.ones(len(user_M)), post_M, inputs, np.arange(users), settings, 5)
    cosine_UN = towers.viewer_UD @ towers.embed(inputs).T
    return np.stack([cosine_UN[0::2].mean(axis=0), cosine_UN[1::2].mean(axis=0)])


def test_the_loss_with_logq_is_lowest_at_the_true_preference_and_without_it_is_not():
    """Positives drawn 0.8 / 0.2 from two posts: the softmax over draws corrected for q must give p, not p / q."""
    rng = np.random.default_rng(0)
    draw_B = torch.from_numpy(rng.choice(2, 4096, p=[0.8, 0.2]))
    log_q_2 = torch.log(torch.tensor([0.8, 0.2]))

    def learned(log_q_B) -> float:
        score_2 = torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.Adam([score_2], lr=0.1)
        for _ in range(300):
            rows = torch.from_numpy(rng.integers(0, len(draw_B), 64))
            liked = draw_B[rows]
            loss = in_batch_loss(torch.ones(64, 1), score_2[liked][:, None], liked, log_q_B[liked] if log_q_B is not None else None,
                                 1.0, torch.ones(64))  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(torch.softmax(score_2.detach(), 0)[0])

    assert learned(log_q_2) > 0.6
    assert learned(None) < 0.6


def test_without_logq_the_post_everybody_meets_is_pushed_down_and_with_it_is_not():
    with_it, without = preferences(True), preferences(False)
    own = np.arange(9) % 2 == 0
    own[0] = False
    assert with_it[0][own].min() > with_it[0][~own][1:].max()
    popular_rank_with = (with_it[0] > with_it[0][0]).sum()
    popular_rank_without = (without[0] > without[0][0]).sum()
    assert popular_rank_with < popular_rank_without


def small_training(seed: int = 1):
    rng = np.random.default_rng(0)
    inputs = PostInputs(
        rng.integers(0, 20, 50), rng.integers(0, 5, 50), rng.integers(0, 6, 50), rng.random((50, 4)).astype(np.float32)
    )
    post_M = rng.integers(0, 40, 300)
    settings = VectorSettings(dim=8, epochs=1, batch=64, history=5)
    return train_towers(
        rng.integers(0, 10, 300), post_M, np.ones(300), post_M, inputs, np.arange(12), settings, seed
    ), inputs


def test_the_same_seed_gives_the_same_vectors_and_leaves_torchs_own_generator_alone():
    torch.manual_seed(99)
    first, inputs = small_training()
    after = torch.rand(1)
    torch.manual_seed(99)
    assert after == torch.rand(1)
    second, _ = small_training()
    assert first.viewer_UD.tobytes() == second.viewer_UD.tobytes()
    assert first.embed(inputs).tobytes() == second.embed(inputs).tobytes()
    assert small_training(seed=2)[0].viewer_UD.tobytes() != first.viewer_UD.tobytes()


def test_the_exported_post_tower_embeds_as_torch_does_also_what_it_never_saw(tmp_path):
    towers, inputs = small_training()
    towers.export_post_tower(tmp_path / "tower.onnx")
    tower = PostTower(tmp_path / "tower.onnx", towers.channel_id_H, towers.topic_T, 4)
    unknown = PostInputs(np.r_[inputs.channel_id_N, 777], np.r_[inputs.topic_N, 88], np.r_[inputs.kind_N, 0],
                         np.concatenate([inputs.content_NE, np.ones((1, 4), np.float32)]))  # fmt: skip
    found_ND = tower.embed(unknown.channel_id_N, unknown.topic_N, unknown.kind_N, unknown.content_NE)
    assert found_ND == pytest.approx(towers.embed(unknown), abs=1e-5)
    assert np.linalg.norm(found_ND, axis=1) == pytest.approx(1.0, abs=1e-5)


def test_a_viewer_without_any_like_still_has_a_vector():
    towers, _ = small_training()
    assert np.linalg.norm(towers.viewer_UD[-1]) == pytest.approx(1.0, abs=1e-5)
