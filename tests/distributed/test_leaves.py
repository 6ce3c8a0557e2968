"""Leaves: alternatives after one history see it and themselves, and nobody sees them."""

import torch

from distributed.models.attention import visible

HISTORY, LEAVES = 3, 2


def _seen(causal: bool) -> torch.Tensor:
    documents = torch.tensor([[7] * HISTORY + [~7] * LEAVES + [~8]])
    slots = torch.arange(documents.shape[1])[None]
    return visible(slots, slots, documents, documents, causal)[0]


def test_a_leaf_sees_its_history_and_itself_and_no_other_leaf():
    for causal in (True, False):
        seen = _seen(causal)
        assert seen[HISTORY:-1, :HISTORY].all(), "the history is visible to each alternative"
        assert torch.equal(seen[HISTORY:, HISTORY:], torch.eye(LEAVES + 1, dtype=torch.bool))
        assert not seen[:HISTORY, HISTORY:].any(), "no alternative is visible to the history"
        assert not seen[-1, :-1].any(), "the leaf of another document sees nothing of this one"


def test_the_history_itself_stays_causal():
    assert torch.equal(_seen(True)[:HISTORY, :HISTORY], torch.ones(HISTORY, HISTORY).tril().bool())
