"""`python -m benchmarks._feature_states WORKSPACE`: the feature-state job in a process of its own; prints one JSON object."""

import json
import sys
import time

from contracts.workspace import Workspace
from pipelines.features import build_states
from pipelines.sizing import session_for


def main() -> None:
    """Starts Spark and writes the states; seconds of both."""
    workspace = Workspace(sys.argv[1])
    began = time.perf_counter()
    spark = session_for(workspace.lake)
    started = time.perf_counter()
    report = build_states(workspace, spark)
    print(json.dumps({"start_s": started - began, "seconds": time.perf_counter() - started, "rows": report["rows"]}))


if __name__ == "__main__":
    main()
