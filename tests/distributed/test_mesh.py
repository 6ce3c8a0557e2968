"""A layout says what it means, or says why it cannot be."""

import pytest

from distributed import LayoutError, ParallelLayout


def test_a_text_becomes_a_layout_and_back():
    layout = ParallelLayout.parse("dp_replicate=4")
    assert layout.world_size == 4 and str(layout) == "dp_replicate=4"
    assert ParallelLayout.parse("").world_size == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tp=2", "axis tp=2 is not built yet"),
        ("dp_replicate=0", "axis dp_replicate is 0"),
        ("dp_replicate", "is not AXIS=RANKS"),
        ("ep=2", "is not AXIS=RANKS"),
        ("dp_replicate=two", "not a whole number"),
        ("dp_replicate=2,dp_replicate=2", "twice"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_a_sentence(text: str, sentence: str):
    with pytest.raises(LayoutError, match=sentence):
        ParallelLayout.parse(text)


def test_a_layout_of_another_world_size_is_refused_with_both_numbers():
    with pytest.raises(LayoutError, match="has 2 ranks, but 3 were started"):
        ParallelLayout.parse("dp_replicate=2").check(3)
