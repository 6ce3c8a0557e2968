"""A torch module as an ONNX file whose bytes depend on the module alone. Needs torch and onnx, imported when used."""

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def write_onnx(module: "nn.Module", example: tuple, path: Path, *, inputs: list[str], output: str,
               dynamic: tuple[dict[int, Any], ...]) -> None:  # fmt: skip
    """Exports `module` (float32, CPU, put into eval mode) for inputs like `example`; `dynamic`: axes that vary, per input."""
    import onnx
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), example, dynamo=True, verbose=False, input_names=inputs,
                                    output_names=[output], dynamic_shapes=dynamic)  # fmt: skip
    assert program is not None
    model = program.model_proto
    # The exporter notes source lines and paths; without them the same model has the same bytes everywhere.
    graph = model.graph
    del model.metadata_props[:], graph.metadata_props[:]
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))
