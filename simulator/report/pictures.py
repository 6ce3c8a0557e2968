"""Which picture of a report shows what."""

from typing import Any

from simulator.report.plots import Point, Row, bar_plot, dumbbell_plot, reliability_plot, row_plot, scatter_plot

LASTING_AXIS = "return_7"


def plots(report: dict[str, Any]) -> dict[str, str]:
    """Name -> SVG; a picture that has nothing to show is absent."""
    found: dict[str, str | None] = {
        "values": _values(report), "trade": _trade(report), "auc": _auc(report), "recall": _recall(report),
        "lasting": _lasting(report), "slices": _slices(report), "effective": _effective(report), "propensities": _propensities(report),
    }  # fmt: skip
    return {name: svg for name, svg in found.items() if svg is not None}


def curves(report: dict[str, Any]) -> list[str]:
    """One reliability curve per task."""
    return [
        reliability_plot(metrics["reliability"], title=name)
        for name, metrics in report["tasks"].items()
        if metrics["positives"]
    ]


def changes(report: dict[str, Any]) -> list[tuple[str, str]]:
    """(arm, SVG): each measure's relative change against the baseline arm."""
    lasting = report["long_term"]
    found = []
    for arm in lasting["viewers"]:
        rows = [_change(one, arm, lasting["baseline"]) for one in lasting["measures"]]
        known = [row for row in rows if row is not None]
        if known:
            axis = f"change against {lasting['baseline']}"
            found.append((arm, row_plot(known, axis=axis, reference=0.0, form="+.1%")))
    return found


def numbered(report: dict[str, Any]) -> dict[str, list[str]]:
    """What the numbers in the scatter plots stand for, in order."""
    return {
        "trade": [point.label for point in _trade_points(report)],
        "lasting": [point.label for point in _lasting_points(report)],
    }


def _values(report: dict[str, Any]) -> str | None:
    if not report["off_policy"]["possible"]:
        return None
    rows = []
    for policy in report["policies"]:
        headline, known = policy["headline"], policy["truth"]["value"] if policy["truth"] else None
        if headline is None:
            rows.append(Row(policy["name"], None, truth=known, note="no estimate: too little overlap"))
        else:
            rows.append(Row(policy["name"], headline["value"], headline["low"], headline["high"], known))
    return row_plot(
        rows,
        axis="value of one feed, in clicks",
        reference=report["off_policy"]["logged"]["value"],
        reference_label="as logged",
    )


def _trade_points(report: dict[str, Any]) -> list[Point]:
    """Replayed policies: clicks against hides, both per 1,000 impressions."""
    test = report["windows"]["test"]
    scale = 1000.0 * test["replayed"] / max(test.get("impressions", 0), 1)
    bad = {mark["arm"] for mark in report["warnings"]}
    points = []
    for policy in report["policies"]:
        clicks, hides = policy["by_task"].get("click"), policy["by_task"].get("hide")
        if clicks and hides:
            points.append(Point(policy["name"], scale * clicks["value"], scale * hides["value"],
                                (scale * clicks["low"], scale * clicks["high"]), (scale * hides["low"], scale * hides["high"]),
                                policy["name"] in bad))  # fmt: skip
    return points


def _trade(report: dict[str, Any]) -> str | None:
    points = _trade_points(report)
    return (
        scatter_plot(points, x_axis="clicks per 1,000 posts shown →", y_axis="hides per 1,000 posts shown")
        if points
        else None
    )


def _lasting_points(report: dict[str, Any]) -> list[Point]:
    by_key = {one["key"]: one["by_arm"] for one in report["long_term"]["measures"]}
    bad = {mark["arm"] for mark in report["long_term"]["marks"]}
    points = []
    for arm in report["long_term"]["viewers"]:
        clicks, lasts = (by_key[key][arm] if by_key else None for key in ("clicks", LASTING_AXIS))
        if clicks and lasts:
            points.append(Point(arm, clicks["value"], 100 * lasts["value"], (clicks["low"], clicks["high"]),
                                (100 * lasts["low"], 100 * lasts["high"]), arm in bad))  # fmt: skip
    return points


def _lasting(report: dict[str, Any]) -> str | None:
    points = _lasting_points(report)
    if len(points) < 2:
        return None
    return scatter_plot(
        points, x_axis="clicks per 1,000 posts shown →", y_axis="visits followed by another within 7 days, %"
    )


def _change(measure: dict[str, Any], arm: str, baseline: str | None) -> Row | None:
    base, one = measure["by_arm"].get(baseline), measure["by_arm"][arm]
    if one is None or base is None or one["difference"] is None or base["value"] <= 0:
        return None
    low, high = (one["difference"][edge] / base["value"] for edge in ("low", "high"))
    wanted = "↑" if measure["better"] == "higher" else "↓"
    return Row(
        f"{measure['name']} {wanted}",
        one["difference"]["relative"],
        low,
        high,
        bad=one["difference"]["worse"],
    )


def _auc(report: dict[str, Any]) -> str | None:
    rows = [
        (name, metrics["auc"], metrics["logistic_auc"])
        for name, metrics in report["tasks"].items()
        if metrics["auc"] is not None
    ]
    return (
        dumbbell_plot(rows, names=("multi-task ranker", "logistic regression"), axis="AUC on the test window")
        if rows
        else None
    )


def _recall(report: dict[str, Any]) -> str | None:
    recall = sorted(report["recall"]["recall_at_100"].items(), key=lambda item: (-item[1], item[0]))
    return bar_plot(recall, axis="recall@100 on the test window", strong="merged") if recall else None


def _slices(report: dict[str, Any]) -> str | None:
    task = next(iter(report["tasks"]), None)
    rows = [Row(name, metrics[task]["auc"]) for name, metrics in report["slices"]["found"].items()
            if task in metrics and metrics[task].get("auc") is not None]  # fmt: skip
    if not rows or task is None or report["tasks"][task]["auc"] is None:
        return None
    return row_plot(rows, axis=f"AUC, {task}", reference=report["tasks"][task]["auc"], reference_label="all together")


def _effective(report: dict[str, Any]) -> str | None:
    rows = [
        (policy["name"], policy["overlap"]["effective_samples_min"])
        for policy in report["policies"]
        if policy["overlap"]
    ]
    return bar_plot(rows, axis="effective samples", form=",.0f") if rows else None


def _propensities(report: dict[str, Any]) -> str | None:
    checked = report["off_policy"]["propensities"]
    if not checked or "calibration" not in checked:
        return None
    return reliability_plot(checked["calibration"], title="newest first")
