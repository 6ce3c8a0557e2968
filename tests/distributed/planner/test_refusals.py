"""What `feedloop plan` is given wrong, in files and options, is one sentence and exit code 2, and nothing is written."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from distributed.planner.descriptions import load_model, model_from
from distributed.planner.diagnosis import diagnose, read_step_log
from distributed.planner.errors import PlanError
from distributed.planner.machines import cluster_from, load_cluster
from feedloop.cli import main

PLAN = ["plan", "--model", "llama3-8b", "--cluster", "h100", "--global-batch", "64"]
ASK = PLAN[:5]
BLOCK = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 8}
LEVEL = {"gb_per_s": 10.0, "alpha_us": 1.0}
TALL = 10**300


def refused(sentence: str, *asked: object) -> None:
    done = CliRunner().invoke(main, [str(part) for part in asked])
    assert done.exit_code == 2, done.output
    assert sentence in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        *[
            (f'"{name}": {value}', f"line 1: {name}")
            for name in ("bubble_s", "compute_s", "samples", "dropped_tokens", "communication_s")
            for value in ('"x"', "null", "[1]", "-3", "NaN", "Infinity", "true", f"{10**400}")
        ],
        *[
            (f'"{name}": {value}', f"line 1: {name} is")
            for name in ("rank", "step", "stage")
            for value in ("[1]", '"x"', "-1", "0.5", "true")
        ],
        *[
            (f'"expert_tokens": {value}', "line 1: expert_tokens")
            for value in ("5", '"abc"', '{"a": 1}', "[[1], [2]]", "[-1, 1]", "[NaN]")
        ],
        ('"communication_s": {"dp": "x"}', 'communication_s.dp is "x"'),
        ('"communication_s": {"dp": -1}', "communication_s.dp is -1"),
        ('"communication_s": {"dp": 30, "tp": 20}', "communication_s is 50 of a step of 1 seconds"),
        ('"bubble_s": 2', "bubble_s is 2 of a step"),
        ('"compute_s": 2', "compute_s is 2 of a step"),
        ('"deep": ' + '{"a": ' * 5000 + "1" + "}" * 5000, "line 1: not JSON, recursion limit"),
        ('"cut": ', "line 1: not JSON"),
    ],
)
def test_no_part_of_a_step_is_other_than_a_number_within_the_step(more, sentence, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"seconds": 1.0, ' + more + "}\n")
    with pytest.raises(PlanError) as caught:
        read_step_log(tmp_path / "log.jsonl")
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "true", "0", "-1", "null", '"1"', "1e308", str(10**400)])
def test_a_step_takes_a_positive_number_of_seconds_and_blank_lines_count(value, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('\n{"seconds": 1.0}\n\n{"seconds": ' + value + "}\n")
    refused("line 4: seconds is", *ASK, "--diagnose", log, "--json")


def test_stages_that_compute_nothing_have_no_slowest_among_them(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"seconds": 1.0, "stage": stage, "compute_s": 0}) + "\n" for stage in (0, 1)))
    assert diagnose(read_step_log(log)).stage_imbalance is None


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        ("[]", "no torch profiler trace"),
        ("null", "no torch profiler trace"),
        ('{"traceEvents": 5}', "no torch profiler trace"),
        ("", "is not JSON"),
        ("[" * 100_000, "too deep"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"traceEvents": []}', "neither kernels nor operators"),
        ('{"traceEvents": [1, 2]}', "event 1 of the trace is no object"),
        *[
            ('{"traceEvents": [{}, {"ph": "X", "cat": "kernel", ' + event + "}]}", f"event 2 of the trace: {said}")
            for event, said in (
                ('"dur": 3, "ts": 1', "name is missing"),
                ('"dur": 3, "name": "x"', "ts is missing"),
                ('"dur": "a", "ts": 1, "name": "x"', 'dur is "a"'),
                ('"dur": NaN, "ts": 1, "name": "x"', "dur is"),
                ('"dur": 3, "ts": null, "name": "x"', "ts is null"),
                ('"dur": -3, "ts": 1, "name": "x"', "dur is -3"),
                ('"dur": 3, "ts": 1, "name": 5', "name is 5"),
            )
        ],
    ],
)
def test_a_trace_that_is_none_is_refused_with_its_event(trace, sentence, tmp_path):
    (tmp_path / "t.json").write_text(trace)
    refused(sentence, *ASK, "--diagnose", tmp_path / "t.json")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tables": 5}, "tables is 5"),
        ({"mlps": [{"name": "a", "widths": 5}]}, "mlps.0.widths is 5"),
        ({**BLOCK, "name": 5}, "name is 5"),
        ({"mlps": [{"name": "a", "widths": ["x", 2]}]}, 'mlps.0.widths.0 is "x"'),
        ({**BLOCK, "experts": [1]}, "experts is [1]"),
        ({**BLOCK, "hidden": TALL}, "hidden is 1000"),
        ({**BLOCK, "layers": 10**8}, "layers is 100000000"),
        ({**BLOCK, "gated": 1}, "gated is 1"),
        (
            {**BLOCK, "experts": {"count": 2, "top_k": 1, "ffn": 8, "wide": 1}},
            "unknown experts.wide; known: capacity_factor, count",
        ),
        (
            {**BLOCK, "experts": {"count": 2, "top_k": 1, "ffn": 8, "capacity_factor": float("nan")}},
            "experts.capacity_factor is NaN",
        ),
        ({"tables": [{"name": "a", "rows": 1.5, "dim": 4}]}, "tables.0.rows is 1.5"),
    ],
)
def test_a_model_of_wrong_types_or_endless_sizes_is_refused_by_its_key(values, sentence):
    with pytest.raises(PlanError) as caught:
        model_from({"name": "x", **values}, "x.json")
    assert f"x.json: {sentence}" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"levels": 5}, "levels is 5"),
        ({"machine": [1]}, "no machine [1]"),
        ({"sources": 5}, "sources is 5"),
        ({"tflops": 5}, "tflops is 5"),
        ({"tflops": {"bf16": "x"}}, 'tflops.bf16 is "x"'),
        ({"tflops": {"fp8": 3.0}}, "tflops of fp8"),
        ({"reserve_gib": -1e9}, "reserve_gib is -1"),
        ({"reserve_gib": 90.0}, "leaves nothing"),
        ({"cores": -1}, "cores is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"gpus": 10**12}, "accelerators"),
        *[
            ({name: value}, f"{name} is")
            for name in ("memory_gib", "memory_gb_per_s", "dollars_per_hour")
            for value in (float("nan"), float("inf"), -3, "x", True, TALL)
        ],
        (
            {"levels": [{"name": "out", "ranks": 0, **LEVEL}, {"name": "in", "ranks": 8, **LEVEL}]},
            "levels join out any number, in 8",
        ),
        (
            {"levels": [{"name": "out", "ranks": 64, **LEVEL}, {"name": "in", "ranks": 8, **LEVEL}]},
            "levels join out 64, in 8",
        ),
        ({"levels": [{"name": "in", "ranks": -3, **LEVEL}]}, "levels.0.ranks is -3"),
        ({"levels": [{"name": "in", "ranks": 8, **LEVEL, "measured": 5}]}, "levels.0.measured is 5"),
    ],
)
def test_a_cluster_of_wrong_types_or_figures_is_refused_by_its_key(values, sentence):
    with pytest.raises(PlanError) as caught:
        cluster_from({"machine": "h100", **values}, None, "c.json")
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [7.0, -0.1, float("nan"), "x"])
@pytest.mark.parametrize("name", ["tp_overlap", "dp_overlap", "pp_overlap"])
def test_an_overlap_is_a_share(name, value):
    shares = {
        "matmul": 1.0,
        "half_size": 1.0,
        "memory": 1.0,
        "attention": 1.0,
        "tp_overlap": 0.0,
        "dp_overlap": 0.0,
        "pp_overlap": 0.0,
    }
    with pytest.raises(PlanError, match=rf"efficiency\.{name} is"):
        cluster_from({"machine": "h100", "efficiency": {**shares, name: value}}, None, "c.json")


def test_objects_too_deep_in_a_description_are_said_so(tmp_path):
    for name, text in (("m.json", '{"a": ' * 100_000), ("m.toml", "a = " + "[" * 100_000)):
        (tmp_path / name).write_text(text)
        with pytest.raises(PlanError, match="too deep"):
            load_model(str(tmp_path / name))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        *[
            ([*ASK, "--requests", "5:5", option, value], f"{option} says nothing beside --requests")
            for option, value in (
                ("--html", "x.html"),
                ("--trace", "x.json"),
                ("--layout", "foo"),
                ("--why-not", "bar"),
                ("--schedules", "1f1b"),
                ("--sequence", "8"),
                ("--global-batch", "8"),
                ("--most-dollars", "1"),
                ("--diagnose", "nosuch"),
            )
        ],
        *[
            ([*ASK, "--diagnose", "x.jsonl", option, value], f"{option} says nothing beside --diagnose")
            for option, value in (
                ("--html", "x.html"),
                ("--trace", "x.json"),
                ("--layout", "foo"),
                ("--why-not", "bar"),
                ("--global-batch", "8"),
            )
        ],
        ([*PLAN, "--layout", "dp=8", "--schedules", "1f1b"], "--schedules says nothing beside --layout"),
        ([*PLAN, "--layout", "dp=8", "--most-dollars", "1"], "--most-dollars says nothing beside --layout"),
        ([*PLAN, "--ranks", "0"], "--ranks says how many"),
        ([*PLAN, "--sequence", "0"], "0 is not in the range"),
        ([*PLAN, "--schedules", ","], "no schedule ','"),
        *[
            ([*PLAN, option, ""], f"{option} is empty")
            for option in ("--layout", "--why-not", "--schedules", "--requests")
        ],
        ([*PLAN, "--layout", ","], "layout ',' names nothing"),
        ([*PLAN, "--why-not", ","], "layout ',' names nothing"),
        *[([*PLAN, "--most-dollars", value], "a finite number above 0") for value in ("0", "-1", "nan", "inf")],
        ([*PLAN, "--gpus", str(10**12)], "--gpus is 1000000000000; 1 to 262,144"),
        ([*PLAN, "--global-batch", str(TALL)], "is not in the range"),
        ([*ASK, "--requests", f"{TALL}:5"], "at most nine digits"),
        ([*PLAN, "--model", "m.json", "--html", "m.json"], "--model and --html both name"),
        ([*PLAN, "--html", "same", "--trace", "./same"], "--html and --trace both name"),
    ],
)
def test_an_option_without_use_or_sense_is_refused_and_nothing_is_written(asked, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(sentence, *asked)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("last", ["--html", "--trace"])
def test_a_page_is_not_written_when_the_trace_cannot_be(last, tmp_path):
    first = "--trace" if last == "--html" else "--html"
    (tmp_path / "file").write_text("")
    refused(
        "cannot be written", *PLAN, "--layout", "dp=8,zero=3", first, tmp_path / "one", last, tmp_path / "file" / "two"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--model", "nosuch"], "no model 'nosuch'"),
        (["--model", "llama3-8b", "--layout", "foo"], "layout part 'foo'"),
        (["--model", "llama3-8b", "--requests", "many"], "--requests is 'many'"),
        (["--model", "llama3-8b", "--diagnose", "nosuch"], "cannot be read"),
        (["--model", "llama3-8b", "--schedules", "2f2b"], "no schedule '2f2b'"),
        (["--model", "llama3-8b", "--most-dollars", "1"], "no dollars_per_hour"),
        (["--html", "x.html"], "--html is of a plan"),
        (["--gpus", "0"], "--gpus is 0"),
        (["--machine-file", "/dev/null/x.json"], "/dev/null"),
    ],
)
def test_what_is_asked_of_a_calibrated_machine_is_looked_at_before_it_is_measured(
    more, sentence, tmp_path, monkeypatch
):
    monkeypatch.setattr("distributed.planner.calibrate.calibrate", lambda *_, **__: pytest.fail("measured"))
    refused(sentence, "plan", "--calibrate", "--workspace", tmp_path / "w", *more)
    assert not Path(tmp_path / "w").exists()


def test_the_largest_cluster_that_is_taken_is_planned_on():
    assert load_cluster("h100", 262_144).gpus == 262_144
    with pytest.raises(PlanError, match="1 to 262,144"):
        load_cluster("h100", 262_145)
