"""A process needs only what it uses: importing one room does not load the heavy libraries of another."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"contracts", "pipelines", "distributed", "recall", "ranking", "serving", "simulator", "feedloop", "benchmarks"}


def loaded_by(statement: str) -> set[str]:
    """The top-level modules in a fresh process after `statement`."""
    program = (
        f"{statement}\nimport sys, json; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("statement", ["import serving", "import serving.api"])
def test_serving_loads_neither_spark_nor_the_trainers(statement):
    assert loaded_by(statement) & {"pyspark", "lightgbm", "implicit", "pipelines", "simulator", "feedloop"} == set()


def test_the_training_platform_loads_nothing_but_torch_and_numpy():
    with_torch = loaded_by("import torch, numpy, torch.distributed")
    third_party = loaded_by("import distributed") - with_torch - sys.stdlib_module_names - {"distributed"}
    # What torch itself loads later, such as sympy for its shapes, is torch's.
    assert third_party - {"sympy", "mpmath", "networkx", "jinja2", "markupsafe", "psutil"} == set()


def test_the_training_platform_knows_no_other_room():
    assert loaded_by("import distributed") & (OURS - {"distributed"}) == set()


@pytest.mark.parametrize("room", sorted(OURS - {"benchmarks"}))
def test_every_room_says_in_its_first_line_what_it_is_for(room):
    first = (ROOT / room / "__init__.py").read_text().lstrip()
    assert first.startswith('"""'), f"{room}/__init__.py has no docstring"


@pytest.mark.parametrize("room", ["contracts", "feedloop", "feedloop.cli"])
def test_the_command_line_starts_without_the_heavy_libraries(room):
    """`feedloop --help` answers at once."""
    assert loaded_by(f"import {room}") & {"torch", "pyspark", "faiss", "lightgbm", "sklearn", "matplotlib"} == set()
