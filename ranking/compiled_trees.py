"""Compiles LightGBM trees for this processor through LLVM and keeps the machine code beside the artifacts.

The text model is the source of truth and part of the artifact. Machine code is not: it differs between processors, so
it lies in `<artifacts>/<kind>/.compiled/`, under a name made of the model's bytes and the processor, and is made again
wherever it is absent or damaged.
"""

import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contracts.files import hash_file, hash_value, write_atomically


def load_compiled(model_path: Path) -> Any:
    """The compiled model (lleaves) of a LightGBM text model at `<kind>/<version>/model.txt`.

    Takes the kept machine code where it was made for these trees and this processor and is whole; else compiles, and
    keeps the result if the folder can be written.
    """
    import lleaves
    import llvmlite.binding as llvm

    processor = [
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        version("lleaves"),
        version("llvmlite"),
    ]
    name = hash_value([hash_file(model_path), processor])[:32]
    kept = model_path.parent.parent / ".compiled" / f"{name}.o"
    seal = kept.with_suffix(".sha256")
    model = lleaves.Model(model_file=str(model_path))
    if kept.is_file() and seal.is_file() and hash_file(kept) == seal.read_text().strip():
        model.compile(cache=str(kept), raw_score=True)
        return model
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "trees.o"
        model.compile(cache=str(fresh), raw_score=True)
        if os.access(model_path.parent.parent, os.W_OK):
            write_atomically(kept, fresh.read_bytes())
            write_atomically(seal, f"{hash_file(kept)}\n".encode())
    return model
