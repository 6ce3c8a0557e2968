"""`feedloop plan`: one JSON object, a table for people, a page on request, and one sentence when it cannot be."""

import json

import pytest
from click.testing import CliRunner

from feedloop.cli import main

ASK = ["plan", "--model", "llama3-70b", "--cluster", "h100", "--gpus", "64", "--global-batch", "256"]


def run(*more):
    return CliRunner().invoke(main, [*ASK, *more])


def test_json_is_one_object_and_the_page_is_written(tmp_path):
    done = run("--json", "--html", str(tmp_path / "plan.html"), "--trace", str(tmp_path / "trace.json"))
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert len(report["best"]) == 10 and report["best"][0]["layout"] == report["chosen"]["layout"]
    assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")
    assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text())


def test_people_get_the_table_the_groups_and_the_reasons():
    done = run("--layout", "tp=4,pp=4,dp=4,zero=2", "--why-not", "dp=64,zero=3")
    assert done.exit_code == 0
    assert "ranks 0 4 8 12: nodes 0 1" in done.stdout and "bottleneck" in done.stdout
    assert "dp=64,zero=3,micro=1 does not fit" in done.stdout


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--layout", "tp=4,pp=4,dp=5"], "= 80 ranks, but there are 64 accelerators"),
        (["--gpus", "0"], "--gpus is 0"),
        (["--model", "gpt-9"], "no model 'gpt-9'; known:"),
        (["--global-batch", "0"], "0 is not in the range"),
        (["--cluster", "/nowhere/c.json"], "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(more, sentence, tmp_path):
    page = tmp_path / "plan.html"
    done = run(*more, "--html", str(page))
    assert done.exit_code == 2 and sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not page.exists()


def test_a_model_and_a_cluster_from_files_are_planned(tmp_path):
    (tmp_path / "m.json").write_text(
        json.dumps({"layers": 4, "hidden": 256, "heads": 8, "sequence": 512, "vocab": 1000})
    )
    (tmp_path / "c.toml").write_text('machine = "a100"\ngpus = 4\nmemory_gib = 40.0\n')
    done = CliRunner().invoke(
        main, ["plan", "--model", str(tmp_path / "m.json"), "--cluster", str(tmp_path / "c.toml"), "--json"]
    )
    report = json.loads(done.stdout)
    assert report["cluster"]["accelerators"] == 4 and report["cluster"]["usable_gib"] == 36


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1], "holds no object"),
        ({"layers": 2}, "must be at least 1"),
        ({"mlps": [{"name": "a", "widths": [4]}]}, "two widths are needed"),
        ({"tables": [{"name": "a", "rows": 0, "dim": 4}]}, "rows 0"),
        ({"tables": "x"}, 'tables is "x"; it should be a valid array'),
        ({"layers": True, "hidden": 64, "heads": 4, "sequence": 8}, "layers is true; it should be a valid integer"),
        (
            {"layers": 2, "hidden": 64, "heads": 4, "sequence": 8, "experts": {"count": 4, "top_k": 8, "ffn": 8}},
            "8 of 4 experts",
        ),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_its_sizes(values, sentence, tmp_path):
    (tmp_path / "m.json").write_text(json.dumps(values))
    done = CliRunner().invoke(main, ["plan", "--model", str(tmp_path / "m.json"), "--cluster", "h100"])
    assert done.exit_code == 2 and sentence in done.stderr


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "tflops is missing"),
        ({"machine": "h100", "levels": []}, "levels is []"),
        ({"machine": "h100", "gpus": 0}, "has 0 accelerators"),
        ({"machine": "h100", "tflops": {}}, "is needed"),
        ({"machine": "h100", "memory_gb_per_s": 0.0}, "memory_gb_per_s is 0.0; it should be greater"),
        ({"machine": "h100", "efficiency": {}}, "missing"),
        (
            {"machine": "h100", "levels": [{"name": "x", "ranks": 4, "gb_per_s": 0.0, "alpha_us": 1.0}]},
            "levels.0.gb_per_s is 0.0",
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_with_its_figures(values, sentence, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(values))
    done = CliRunner().invoke(main, ["plan", "--model", "llama3-8b", "--cluster", str(tmp_path / "c.json")])
    assert done.exit_code == 2 and sentence in done.stderr
