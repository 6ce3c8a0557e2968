"""The vector index: new posts at once, removed posts never, exact against brute force."""

import numpy as np
import pytest

from recall.vector import VectorIndex


@pytest.fixture
def vectors(rng):
    vector_ND = rng.normal(size=(200, 8)).astype(np.float32)
    return vector_ND / np.linalg.norm(vector_ND, axis=1, keepdims=True)


def test_the_index_finds_what_brute_force_finds(vectors):
    index = VectorIndex.build(np.arange(200) + 7, vectors, flat_below=1000)
    found, score = index.search(vectors[3], 10)
    assert found.tolist() == (np.argsort(-(vectors @ vectors[3]))[:10] + 7).tolist()
    assert score[0] == pytest.approx(1.0, abs=1e-5)


def test_an_added_post_is_found_by_the_next_search_and_adding_twice_adds_one(vectors):
    index = VectorIndex.build(np.arange(100), vectors[:100], flat_below=1000)
    index.add(np.array([500, 3]), vectors[[150, 150]])
    assert index.search(vectors[150], 2)[0].tolist().count(500) == 1
    assert 500 in index and len(index) == 101


def test_a_removed_post_is_in_no_answer_even_when_the_answer_is_everything(vectors):
    index = VectorIndex.build(np.arange(100), vectors[:100], flat_below=1000)
    for gone in range(0, 60, 2):
        index.remove(gone)
        assert gone not in index.search(vectors[gone], 100)[0]
    assert len(index) == 70 and len(index.search(vectors[0], 100)[0]) == 70
    index.remove(12345)


def test_a_removed_post_does_not_come_back_by_being_added_again(vectors):
    index = VectorIndex.build(np.arange(100), vectors[:100], flat_below=1000)
    index.remove(5)
    index.add(np.array([5]), vectors[[5]])
    assert 5 not in index.search(vectors[5], 100)[0]


def test_a_large_index_has_inverted_lists_and_still_finds_the_nearest(rng):
    vector_ND = rng.normal(size=(3000, 8)).astype(np.float32)
    index = VectorIndex.build(np.arange(3000), vector_ND, flat_below=1000)
    assert (
        sum(index.search(vector_ND[row], 1)[0][0] == np.argmax(vector_ND @ vector_ND[row]) for row in range(50)) >= 45
    )


def test_a_written_index_reads_back_the_same(vectors, tmp_path):
    index = VectorIndex.build(np.arange(200), vectors, flat_below=1000)
    index.write(tmp_path / "posts.faiss")
    again = VectorIndex.read(tmp_path / "posts.faiss", np.arange(200), vectors, 1000)
    assert again.search(vectors[9], 20)[0].tolist() == index.search(vectors[9], 20)[0].tolist()
