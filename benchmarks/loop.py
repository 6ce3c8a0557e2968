"""The whole loop on the behaviour environment's log: time, memory, and whether each model beats what it has to beat.

`python -m benchmarks.loop` runs every stage afresh in a folder of its own; `--quick` takes a small population, whose
quality figures are noisy.
"""

import itertools
import tempfile
from pathlib import Path

from benchmarks.claims import Claim, Result, run
from contracts.machine.redis_server import RedisServer
from contracts.workspace import Workspace
from feedloop.loop import LoopSettings, run_loop

ORDER = ("random", "popularity", "prerank", "full")


def measure(quick: bool) -> Result:
    """The loop's own figures beside the baselines it has to beat."""
    settings = LoopSettings(users=150, days=12) if quick else LoopSettings()
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder) / "redis") as server:
        summary = run_loop(Workspace(Path(folder) / "workspace"), settings, server.url, fresh=True)
    result = Result(
        sizes={"users": settings.users, "days": settings.days, "seed": settings.seed, "rows": summary["rows"]}
    )
    seconds, memory_gb = summary["seconds"]["all"], summary["peak_memory_gb"]
    result.claims += [
        Claim(
            "whole loop, log to published feed", seconds, "s", goal="at most 240 s (set-up apart)", met=seconds <= 240
        ),
        Claim("peak memory of the loop, Java and all", memory_gb, "GB", goal="under 6 GB", met=memory_gb < 6),
    ]
    for task, value in summary["auc"].items():
        peer = summary["auc_logistic_regression"][task]
        result.claims.append(Claim(f"test AUC, {task}: MMoE", value, "AUC", "logistic regression, same inputs", peer,
                                   "above the peer", value > peer))  # fmt: skip
    recall = summary["recall_at_100"]
    for path, words in (("popular", "popularity alone"), ("social", "friends alone")):
        result.claims.append(Claim("recall@100, all paths merged", recall["merged"], "recall", words, recall[path],
                                   "above the peer", recall["merged"] > recall[path]))  # fmt: skip
    policies = summary["replay"]
    for below, above in itertools.pairwise(ORDER):
        for figure, words in (("headline", "DR estimate"), ("truth", "environment's truth")):
            value, peer = (policies[name][figure]["value"] for name in (above, below))
            result.claims.append(Claim(f"value per request, {above}: {words}", value, "value", below, peer, "above the peer",
                                       value > peer))  # fmt: skip
    return result


if __name__ == "__main__":
    run("loop", measure)
