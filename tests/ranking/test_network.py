"""The network masks absent labels, learns what is planted, and its inputs are transformed the same everywhere."""

import numpy as np
import torch

from contracts.features import INPUT_NAMES
from ranking.mmoe import MMoE, masked_log_loss
from ranking.transform import NUMERIC_NAMES, InputTransform, one_hot


def _inputs(rng: np.random.Generator, rows: int = 400) -> np.ndarray:
    inputs_NF = rng.exponential(3.0, (rows, len(INPUT_NAMES)))
    inputs_NF[:, INPUT_NAMES.index("post_kind")] = rng.integers(0, 6, rows)
    inputs_NF[:, INPUT_NAMES.index("post_topic")] = rng.integers(0, 8, rows)
    return inputs_NF


def _network(slots: list[int], seed: int = 0) -> MMoE:
    torch.manual_seed(seed)
    return MMoE(
        len(NUMERIC_NAMES),
        slots,
        5,
        experts=3,
        expert_width=8,
        tower_width=4,
        embedding_dim=2,
        prior_logits_T=torch.zeros(5),
    ).double()


def test_an_absent_label_adds_nothing_and_has_no_gradient():
    logits_BT = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    labels_BT = torch.tensor([[1.0, torch.nan], [0.0, torch.nan], [torch.nan, torch.nan]], dtype=torch.float64)
    sums_T = masked_log_loss(logits_BT, labels_BT, torch.ones(3, dtype=torch.float64))
    sums_T.sum().backward()
    assert torch.allclose(sums_T, torch.tensor([2 * np.log(2), 0.0], dtype=torch.float64))
    assert torch.equal(logits_BT.grad, torch.tensor([[-0.5, 0.0], [0.5, 0.0], [0.0, 0.0]], dtype=torch.float64))


def test_the_masked_loss_of_full_labels_is_the_plain_one(rng: np.random.Generator):
    logits_BT, weights_B = torch.from_numpy(rng.normal(size=(50, 5))), torch.from_numpy(rng.random(50))
    labels_BT = torch.from_numpy(rng.integers(0, 2, (50, 5)).astype(float))
    plain = torch.nn.functional.binary_cross_entropy_with_logits(
        logits_BT, labels_BT, weight=weights_B[:, None], reduction="none"
    )
    assert torch.allclose(masked_log_loss(logits_BT, labels_BT, weights_B), plain.sum(dim=0))


def test_numeric_inputs_are_logged_standardised_and_held_within_bounds(rng: np.random.Generator):
    inputs_NF = _inputs(rng)
    transform = InputTransform.fit(inputs_NF, 256, 5)
    numeric_NM, _ = transform(torch.from_numpy(inputs_NF))
    column = NUMERIC_NAMES.index("tie_likes_14d")
    raw_N = np.log1p(inputs_NF[:, INPUT_NAMES.index("tie_likes_14d")])
    assert np.allclose(numeric_NM[:, column], (raw_N - raw_N.mean()) / raw_N.std())
    inputs_NF[0, INPUT_NAMES.index("tie_likes_14d")] = 1e30
    assert transform(torch.from_numpy(inputs_NF))[0][0, column] == 8.0


def test_rare_unknown_and_impossible_codes_share_slot_zero(rng: np.random.Generator):
    inputs_NF = _inputs(rng)
    topic = INPUT_NAMES.index("post_topic")
    inputs_NF[:3, topic] = 40
    transform = InputTransform.fit(inputs_NF, 256, 5)
    assert 40 not in transform.vocabulary["post_topic"]
    probe_NF = np.repeat(inputs_NF[:1], 6, axis=0)
    probe_NF[:, topic] = [40, 9, 10**9, -1, 0, 7]
    assert transform(torch.from_numpy(probe_NF))[1][:, 1].tolist() == [0, 0, 0, 0, 1, 8]


def test_only_the_commonest_codes_get_a_slot(rng: np.random.Generator):
    inputs_NF = _inputs(rng)
    inputs_NF[:300, INPUT_NAMES.index("post_topic")] = 3
    transform = InputTransform.fit(inputs_NF, 2, 1)
    assert 3 in transform.vocabulary["post_topic"] and transform.slots == [3, 3]


def test_the_linear_baseline_sees_the_same_inputs_as_the_network(rng: np.random.Generator):
    inputs_NF = _inputs(rng)
    transform = InputTransform.fit(inputs_NF, 256, 5)
    numeric_NM, slots_NC = (tensor.numpy() for tensor in transform(torch.from_numpy(inputs_NF)))
    design_ND = one_hot(numeric_NM, slots_NC, transform.slots)
    assert design_ND.shape == (400, len(NUMERIC_NAMES) + sum(transform.slots))
    assert (design_ND[:, len(NUMERIC_NAMES) :].sum(axis=1) == 2).all()


def test_each_task_has_a_head_of_its_own(rng: np.random.Generator):
    inputs_NF = _inputs(rng)
    transform = InputTransform.fit(inputs_NF, 256, 5)
    network = _network(transform.slots)
    tensors = transform(torch.from_numpy(inputs_NF))
    logits_NT = network(*tensors).detach().numpy()
    correlation_TT = np.corrcoef(logits_NT.T)
    assert np.abs(correlation_TT[np.triu_indices(5, 1)]).max() < 0.999
    assert torch.allclose(network.gate_shares(*tensors).sum(dim=2), torch.ones(400, 5, dtype=torch.float64))
