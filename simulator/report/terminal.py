"""The policies of a replay as one table on stderr."""

import sys
from typing import Any

from rich.console import Console
from rich.table import Table


def print_policies(report: dict[str, Any]) -> None:
    """Value of each policy with its interval, gain over the baseline, effective samples, truth where it is known; then what
    a policy would be bought with, and the verdict."""
    console = Console(file=sys.stderr, highlight=False)
    # A log file has no width of its own, and a table cut at 80 columns cannot be read.
    if not console.is_terminal:
        console.width = 120
    with_truth = any(policy["truth"] for policy in report["policies"])
    table = Table(title="Policies on the test window", title_justify="left", header_style="bold")
    table.add_column("policy")
    for name in (
        "value",
        "95% interval",
        f"over {report['baseline']}",
        "true value" if with_truth else "",
        "eff. samples",
        "NDCG@8",
    ):
        if name:
            table.add_column(name, justify="right")
    for policy in report["policies"]:
        headline, gain, truth = policy["headline"], policy["gain"], policy["truth"]
        cells = [policy["name"]]
        cells.append(f"{headline['value']:.3f}" if headline else "no estimate")
        cells.append(f"{headline['low']:.3f} to {headline['high']:.3f}" if headline else "–")
        cells.append(f"{gain['relative']:+.1%}" if gain and gain["relative"] is not None else "–")
        if with_truth:
            cells.append(f"{truth['value']:.3f}" if truth else "–")
        cells.append(f"{policy['overlap']['effective_samples_min']:.0f}" if policy["overlap"] else "–")
        cells.append("–" if policy["ndcg"] is None else f"{policy['ndcg']:.3f}")
        table.add_row(*cells)
    console.print(table)
    for mark in report["warnings"]:
        console.print(f"MIND: {mark['sentence']}", markup=False, style="bold red")
    for sentence in report["verdict"]:
        console.print(sentence, markup=False)
