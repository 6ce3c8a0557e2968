"""An artifact is whole or absent, is held against its hashes, and is made again over a damaged one."""

import pytest

from contracts.artifacts import ArtifactStore
from contracts.errors import BadInput


def make(store: ArtifactStore, text: str = "weights") -> str:
    with store.create("model", settings={"size": 3}) as artifact:
        (artifact.path / "model.txt").write_text(text)
    return artifact.version


def test_the_same_content_has_the_same_version_and_comes_into_force(tmp_path):
    store = ArtifactStore(tmp_path)
    assert make(store) == make(store) == store.load("model").version
    other = make(store, "others")
    assert store.load("model").version == other and len(store.versions("model")) == 2


def test_a_failure_while_building_leaves_what_was_in_force(tmp_path):
    store = ArtifactStore(tmp_path)
    version = make(store)

    def fail() -> None:
        with store.create("model") as artifact:
            (artifact.path / "model.txt").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.load("model").version == version
    assert [path.name for path in (tmp_path / "model").iterdir() if path.name.startswith(".building")] == []


@pytest.mark.parametrize("damage", [b"", b"weight", b"weightz"])
def test_a_damaged_file_is_named_and_made_again(tmp_path, damage):
    store = ArtifactStore(tmp_path)
    version = make(store)
    (tmp_path / "model" / version / "model.txt").write_bytes(damage)
    with pytest.raises(BadInput, match="model.txt was changed"):
        store.load("model")
    assert make(store) == version and store.load("model").file("model.txt").read_text() == "weights"


@pytest.mark.parametrize("content", [b"[]", b"{}", b"\xff\xfe", b""])
def test_a_damaged_manifest_or_pointer_is_one_sentence(tmp_path, content):
    store = ArtifactStore(tmp_path)
    version = make(store)
    (tmp_path / "model" / version / "manifest.json").write_bytes(content)
    with pytest.raises(BadInput, match="manifest.json"):
        store.load("model")
    (tmp_path / "model" / "CURRENT").write_bytes(content)
    with pytest.raises(BadInput):
        store.load("model")
