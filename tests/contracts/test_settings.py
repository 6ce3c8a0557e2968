"""A setting that cannot be is one sentence with the variable and its value, whichever room reads it."""

from importlib import import_module

import pytest

from contracts.errors import BadInput

ROOMS = {
    "FEEDLOOP_SAMPLES_": "pipelines.samples.settings:SampleSettings",
    "FEEDLOOP_SEQUENCE_": "ranking.settings:SequenceSettings",
    "FEEDLOOP_RANKER_": "ranking.settings:RankerSettings",
    "FEEDLOOP_PRERANK_": "ranking.settings:PrerankSettings",
    "FEEDLOOP_REPLAY_": "simulator.replay.settings:ReplaySettings",
    "FEEDLOOP_FEED_": "serving.settings:FeedSettings",
    "FEEDLOOP_PUBLISH_": "serving.settings:PublishSettings",
    "FEEDLOOP_API_": "serving.settings:ApiSettings",
    "FEEDLOOP_SPARK_": "pipelines.spark:SparkSettings",
    "SPARK_MASTER": "pipelines.spark:SparkSettings",
    "FEEDLOOP_BROKEN_SHARE": "pipelines.expectations.check:ExpectationSettings",
    "FEEDLOOP_REDIS_": "contracts.machine.redis_server:RedisSettings",
}
WRONG: dict[str, tuple[str, ...]] = {
    "FEEDLOOP_SAMPLES_KEEP_NEGATIVES": ("nan", "0", "-1", "2", "abc", "", "inf"),
    "FEEDLOOP_SAMPLES_SEED": ("huge", "-1", "99999999999999999999"),
    **{
        f"FEEDLOOP_SEQUENCE_{name}": ("0", "2000000000")
        for name in ("HISTORY", "CANDIDATES", "LAYERS", "WIDTH", "HEADS", "FEED_FORWARD", "TOP_K", "TRIES")
    },
    **{
        f"FEEDLOOP_RANKER_{name}": ("0", "2000000000")
        for name in ("EXPERTS", "EXPERT_WIDTH", "TOWER_WIDTH", "EMBEDDING_DIM", "TRIES")
    },
    "FEEDLOOP_SEQUENCE_SPARSE_EXPERTS": ("-1", "2000000000"),
    "FEEDLOOP_SEQUENCE_COLLECTIVE_TIMEOUT_S": ("1e300", "1e-9"),
    "FEEDLOOP_RANKER_BATCH_SIZE": ("x", "1.5"),
    "FEEDLOOP_RANKER_SEED": ("-1",),
    "FEEDLOOP_RANKER_LEARNING_RATE": ("inf", "nan"),
    "FEEDLOOP_RANKER_EXPOSURE_CLIP": ("inf",),
    "FEEDLOOP_RANKER_THREADS": ("1000000000",),
    "FEEDLOOP_PRERANK_TREES": ("1000000000000",),
    "FEEDLOOP_PRERANK_L2": ("inf",),
    "FEEDLOOP_REPLAY_RESAMPLES": ("5",),
    "FEEDLOOP_FEED_AUTHOR_DECAY": ("nan",),
    "FEEDLOOP_PUBLISH_LOCK_S": ("0",),
    "FEEDLOOP_API_REDIS_TIMEOUT_S": ("1e300", "inf"),
    "FEEDLOOP_SPARK_MEMORY": ("2x", "10m", "900000g", ""),
    "FEEDLOOP_SPARK_PARTITIONS": ("0", "1000000000000"),
    "SPARK_MASTER": ("nosuch", "local[0]"),
    "FEEDLOOP_BROKEN_SHARE": ("nan",),
    "FEEDLOOP_REDIS_MAXMEMORY_BYTES": ("-1", "99999999999999999999"),
}


def settings_class(variable: str):
    module, name = next(where for prefix, where in ROOMS.items() if variable.startswith(prefix)).split(":")
    return getattr(import_module(module), name)


@pytest.mark.parametrize(("variable", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_variable_is_one_sentence_with_its_name_and_value(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadInput, match=f"^{variable} is ") as raised:
        settings_class(variable)()
    sentence = str(raised.value)
    assert "\n" not in sentence and "pydantic" not in sentence and value[:5] in sentence


@pytest.mark.parametrize(
    ("variable", "value"),
    [("FEEDLOOP_SPARK_MEMORY", "512m"), ("SPARK_MASTER", "local[*]"), ("SPARK_MASTER", "spark://host:7077"),
     ("FEEDLOOP_REDIS_MAXMEMORY_BYTES", "100000000000"), ("FEEDLOOP_RANKER_EXPOSURE_CLIP", "3"),
     ("FEEDLOOP_SEQUENCE_SEED", "0")],
)  # fmt: skip
def test_what_can_be_is_taken(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert value in [str(one).removesuffix(".0") for one in dict(settings_class(variable)()).values()]


def test_a_wrong_argument_is_called_as_it_was_given(monkeypatch):
    monkeypatch.delenv("FEEDLOOP_SAMPLES_SEED", raising=False)
    with pytest.raises(BadInput, match=r"^keep_negatives is 5"):
        settings_class("FEEDLOOP_SAMPLES_SEED")(keep_negatives=5)
