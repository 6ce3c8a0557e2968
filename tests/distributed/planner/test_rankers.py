"""The project's rankers as the planner describes them, and the command that trains the layout that it answers."""

import shlex

import pytest
import torch
from click.testing import CliRunner

from distributed import ParallelLayout
from distributed.planner.answer import Question, answer
from distributed.planner.descriptions import load_model
from distributed.planner.flags import training_command
from distributed.planner.layout import objections, parse_layout
from distributed.planner.machines import load_cluster
from feedloop.cli import main
from feedloop.verbs.models import ranker_verb


def _head(numeric: int):
    from ranking.mmoe import MMoE
    from ranking.settings import RankerSettings

    s = RankerSettings()
    return MMoE(numeric, [256, 256], 5, experts=s.experts, expert_width=s.expert_width, tower_width=s.tower_width,
                embedding_dim=s.embedding_dim, prior_logits_T=torch.zeros(5))  # fmt: skip


def test_the_mmoe_ranker_has_the_parameters_that_are_described():
    assert load_model("feed-mmoe").parameters == sum(p.numel() for p in _head(84).parameters())


def test_the_sequence_ranker_has_the_parameters_that_are_described():
    from ranking.sequence.network import SequenceRanker, network_sizes
    from ranking.settings import SequenceSettings

    settings, described = SequenceSettings(), load_model("feed-sequence")
    network = SequenceRanker(network_sizes(settings), described.tables[0].rows, 84, _head(84 + settings.width))
    assert described.parameters == sum(p.numel() for p in network.parameters())
    assert described.sequence == settings.history + settings.candidates


@pytest.mark.parametrize(
    ("text", "batch"),
    [("dp=2,zero=0", 8), ("tp=2,dp=2,zero=1,micro=2", 16), ("cp=2,ulysses=2,zero=3", 8), ("dp=4,ep=2,replicas=2,zero=2", 16),
     ("pp=2,dp=2,zero=0,micro=1,schedule=zb-h1", 16), ("tp=2,dp=2,ep=4,ep_over_tp=1,zero=1,recompute=full", 8)],
)  # fmt: skip
def test_the_command_says_the_same_layout_to_training(text, batch):
    from ranking.layouts import asked_layout

    layout, model = parse_layout(text), load_model("feed-sequence")
    assert objections(model, layout, layout.world_size, batch) == []
    micro_batches = batch // layout.dp // layout.micro_batch
    command, unsaid = training_command(model, layout, micro_batches)
    words = shlex.split(command)
    assert words[:3] == ["feedloop", "train", "ranker"] and not unsaid
    said = ranker_verb.make_context("ranker", words[3:]).params
    asked = asked_layout(said["layout"], said["nproc"], **{
        name: said[name] for name in ("ep", "ep_over_tp", "zero", "micro_batches", "schedule", "virtual", "recompute", "ulysses")
    })  # fmt: skip
    assert asked.axes == ParallelLayout.parse(layout.mesh) and asked.axes.world_size == layout.world_size
    assert (asked.zero_stage, asked.ep, asked.ep_over_tp) == (layout.zero, layout.ep, layout.ep_over_tp)
    assert (asked.micro_batches, asked.recompute, asked.ulysses) == (micro_batches, layout.recompute, layout.ulysses)
    assert asked.schedule == (layout.schedule if layout.pp > 1 else "1f1b")


def test_what_training_does_not_do_is_said_beside_the_command():
    layout = parse_layout("tp=2,cp=2,sp=0,zigzag=0,zero=0,order=cp-tp-dp-pp")
    _, unsaid = training_command(load_model("feed-sequence"), layout, 4)
    assert [text.split("=")[0] for text in unsaid] == ["sp", "zigzag", "order"]


def test_the_answer_prints_how_to_train_and_only_for_what_the_project_trains():
    told = answer(Question(load_model("feed-sequence"), load_cluster("cpu-gloo", 4), 256)).report["train"]
    assert told["command"].startswith("feedloop train ranker --model sequence --nproc 4 --layout ")
    done = CliRunner().invoke(
        main, ["plan", "--model", "feed-mmoe", "--cluster", "cpu-gloo", "--gpus", "2", "--global-batch", "2048"]
    )
    assert done.exit_code == 0 and "train so: feedloop train ranker --model mmoe --nproc 2" in done.stdout
    done = CliRunner().invoke(main, ["plan", "--model", "llama3-8b", "--cluster", "h100"])
    assert "train so" not in done.stdout


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("pp=2,schedule=dualpipe,zero=0", "does not run"), ("pp=2,schedule=zb-h1,recompute=selective,zero=0", "comes in two parts")],
)  # fmt: skip
def test_what_the_platform_cannot_run_is_refused_for_its_own_models(text, sentence):
    assert sentence in " ".join(objections(load_model("feed-sequence"), parse_layout(text), 2, 16))


def test_every_recipe_that_is_searched_for_a_ranker_is_one_that_trains():
    from distributed.planner.estimate import Estimator
    from distributed.planner.layout import meshes
    from distributed.planner.search import Limits, recipes

    model = load_model("feed-sequence")
    estimator = Estimator(model, load_cluster("cpu-gloo", 4), 64)
    looked = [layout for mesh in meshes(model, 4, 4) for layout in recipes(estimator, mesh, Limits())]
    assert {layout.recompute for layout in looked} == {"none", "selective", "full"}
    assert [str(layout) for layout in looked if objections(model, layout, 4, 64)] == []
