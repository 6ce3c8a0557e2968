"""The two-tower model: sampling bias corrected, deterministic, the same in ONNX as in torch."""

import numpy as np
import pytest
import torch

from recall.settings import VectorSettings
from recall.two_tower import PostInputs, in_batch_loss, train_towers
from recall.vector import PostTower

torch.set_num_threads(1)


def preferences(logq: bool) -> np.ndarray:
    """Cosines (2, posts) of two kinds of viewers with posts, where one post is liked by all.

    Half of everybody's likes go to post 0, an eighth each to four posts of the viewer's own kind, none to the others.
    """
    rng = np.random.default_rng(3)
    users, posts = 40, 9
    user_M = rng.integers(0, users, 4000)
    own_M = 1 + 2 * rng.integers(0, 4, len(user_M)) + (user_M % 2 == 0)  # even viewers: 2, 4, 6, 8
    post_M = np.where(rng.random(len(user_M)) < 0.5, 0, own_M)
    inputs = PostInputs(
        np.arange(posts), np.zeros(posts, np.int64), np.zeros(posts, np.int64), np.zeros((posts, 0), np.float32)
    )
    settings = VectorSettings(
        dim=8, epochs=6, batch=200, history=1, logq=logq, id_dropout=0.0, learning_rate=0.02, temperature=0.3
    )
    towers = train_towers(user_M, post_M, np.ones(len(user_M)), post_M, inputs, np.arange(users), settings, 5)
    cosine_UN = towers.viewer_UD @ towers.embed(inputs).T
    return np.stack([cosine_UN[0::2].mean(axis=0), cosine_UN[1::2].mean(axis=0)])


def learned_shares(log_q_3: torch.Tensor | None) -> np.ndarray:
    """What three free scores become when the loss sees three posts liked 50, 30 and 20 times in a hundred."""
    liked_B = torch.repeat_interleave(torch.arange(3), torch.tensor([50, 30, 20]))
    score_3 = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([score_3], lr=0.05)
    for _ in range(150):
        log_q_B = None if log_q_3 is None else log_q_3[liked_B]
        loss = in_batch_loss(torch.ones(100, 1), score_3[liked_B][:, None], log_q_B, 1.0, torch.ones(100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.softmax(score_3.detach(), 0).numpy()


def test_corrected_for_sampling_the_loss_learns_the_true_preferences_and_uncorrected_it_does_not():
    preference = np.array([0.5, 0.3, 0.2])
    assert learned_shares(torch.log(torch.tensor([0.5, 0.3, 0.2]))) == pytest.approx(preference, abs=0.01)
    assert learned_shares(None) == pytest.approx(np.full(3, 1 / 3), abs=0.01)


def test_without_logq_the_post_that_everybody_likes_most_falls_behind_and_with_it_comes_first():
    with_it, without = preferences(True), preferences(False)
    for viewers, own in ((0, slice(2, 9, 2)), (1, slice(1, 9, 2))):
        assert with_it[viewers].argmax() == 0
        assert without[viewers][own].min() > without[viewers][0]


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
