"""Reads descriptions: a model by name, or from a JSON or TOML file, each wrong key or type named."""

import dataclasses
import json
import tomllib
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

from distributed.planner.errors import PlanError
from distributed.planner.models import Experts, Mlp, Model, Table

ZOO = Path(__file__).parent / "models.toml"


def build(kind: type, values: dict[str, Any], where: str) -> Any:
    known = {field.name for field in fields(kind)}
    unknown = set(values) - known
    if unknown:
        raise PlanError(f"{where}: unknown {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        wanted = (int, float) if hints[name] is float else hints[name]
        if hints[name] in (int, bool, float, str) and (
            not isinstance(value, wanted) or (isinstance(value, bool) and hints[name] is not bool)
        ):
            raise PlanError(f"{where}: {name} is {value!r}, which is not of type {hints[name].__name__}")
    try:
        return kind(**values)
    except TypeError as error:
        raise PlanError(f"{where}: {error}") from None


def model_from(values: dict[str, Any], where: str) -> Model:
    """The model of a parsed JSON or TOML object; `PlanError` names the unknown or missing key."""
    values = dict(values)
    for name in ("tables", "mlps"):
        if not all(isinstance(part, dict) for part in values.get(name, ())):
            raise PlanError(f"{where}: {name} is not a list of objects")
    if values.get("experts") is not None and not isinstance(values["experts"], dict):
        raise PlanError(f"{where}: experts is not an object")
    if values.get("experts") is not None:
        values["experts"] = build(Experts, values["experts"], f"{where}, experts")
    values["tables"] = tuple(build(Table, table, f"{where}, tables") for table in values.get("tables", ()))
    mlps = [{**mlp, "widths": tuple(mlp.get("widths", ()))} for mlp in values.get("mlps", ())]
    values["mlps"] = tuple(build(Mlp, mlp, f"{where}, mlps") for mlp in mlps)
    return build(Model, values, where)


def read_description(path: Path) -> dict[str, Any]:
    """A JSON or TOML file as an object."""
    try:
        text = path.read_text()
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from None
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
    return dataclasses.replace(model, sequence=sequence) if sequence else model
