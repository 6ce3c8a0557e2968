"""Loads the native libraries together and makes a gloo group of one; prints one JSON object. Runs in a process of its own.

Apart from the caller because a library that is broken can end its process, and because a process in which OpenMP has
run must not fork any more.
"""

import importlib
import json
import tempfile
from importlib import metadata

# The order is that of a process of ours: torch brings an OpenMP with it where the system lacks one.
LIBRARIES = ("torch", "faiss", "lightgbm", "lleaves", "onnxruntime", "implicit", "pyspark")
DISTRIBUTIONS = {"faiss": "faiss-cpu"}


def main() -> None:
    seen: dict[str, dict[str, object]] = {}
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
            seen[name] = {"version": metadata.version(DISTRIBUTIONS.get(name, name))}
        except Exception as error:
            seen[name] = {"error": _one_line(error)}
    if "error" not in seen["torch"]:
        seen["cuda"], seen["nccl"], seen["gloo"] = _cuda(), _nccl(), _gloo()
        seen["openmp"] = _openmp()
    print(json.dumps(seen))


def _cuda() -> dict[str, object]:
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"devices": devices, "build": torch.version.cuda}


def _nccl() -> dict[str, object]:
    import torch

    if not torch.distributed.is_nccl_available():
        return {"error": "this torch is built without NCCL"}
    return {"version": ".".join(str(number) for number in torch.cuda.nccl.version())}


def _gloo() -> dict[str, object]:
    """A group of one still has to find a network address for this host, which is what fails where gloo fails."""
    import torch
    from torch import distributed

    try:
        with tempfile.NamedTemporaryFile() as file:
            distributed.init_process_group("gloo", init_method=f"file://{file.name}.store", rank=0, world_size=1)
            total = torch.ones(1)
            distributed.all_reduce(total)
            distributed.destroy_process_group()
    except Exception as error:
        return {"error": _one_line(error)}
    return {"sum": total.item()}


def _openmp() -> dict[str, object]:
    import torch
    from threadpoolctl import threadpool_info

    runtimes = sorted(
        {pool["filepath"].rpartition("/")[2] for pool in threadpool_info() if pool["user_api"] == "openmp"}
    )
    return {"runtimes": runtimes, "threads": torch.get_num_threads()}


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    main()
