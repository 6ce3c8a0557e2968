"""Reads descriptions: a model by name, or from a JSON or TOML file, each wrong key or value named."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from distributed.planner.described import build
from distributed.planner.errors import PlanError
from distributed.planner.models import Model

ZOO = Path(__file__).parent / "models.toml"


def model_from(values: dict[str, Any], where: str) -> Model:
    """The model of a parsed JSON or TOML object; `PlanError` names the value or key that is wrong, unknown or missing."""
    return build(Model, values, where)


def read_description(path: Path) -> dict[str, Any]:
    """A JSON or TOML file as an object."""
    try:
        text = path.read_text()
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} cannot be read: byte {error.start} is no UTF-8") from None
    except RecursionError:
        raise PlanError(f"{path} cannot be read: its objects lie too deep in each other") from None
    except ValueError as error:
        raise PlanError(f"{path} is neither valid JSON nor valid TOML: {error}") from None
    if not isinstance(found, dict):
        raise PlanError(f"{path} holds no object of names and values")
    return found


def known_models() -> dict[str, Model]:
    """The shipped models by name."""
    found = tomllib.loads(ZOO.read_text())
    return {name: model_from({"name": name, **values}, f"{ZOO.name}, {name}") for name, values in found.items()}


def load_model(name: str, sequence: int | None = None) -> Model:
    """A shipped model by name, or one from a .json or .toml file; `sequence` replaces the described length."""
    if name.endswith((".json", ".toml")):
        values = read_description(Path(name))
        model = model_from({"name": Path(name).stem, **values}, name)
    else:
        models = known_models()
        if name not in models:
            raise PlanError(f"no model {name!r}; known: {', '.join(models)}, or a path to a .json or .toml file")
        model = models[name]
    return dataclasses.replace(model, sequence=sequence) if sequence is not None else model
