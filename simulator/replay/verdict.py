"""The verdict of a replay in plain words: what is better, what is worse, and what a gain in clicks is paid with."""

from typing import Any

from simulator.evaluation.satisfaction import said
from simulator.replay.question import SERVED, UNTUNED


def replay_marks(policies: list[dict[str, Any]], baseline: str) -> list[dict[str, Any]]:
    """Replayed policies that gain clicks over `baseline` and would have more posts hidden, which is what a log says of the
    long term about a policy that nobody has seen yet; the served one also without the gain. Figures are per request, of
    the same length for all policies."""
    found = []
    for policy in policies:
        clicks, hides = (policy["by_task"].get(task, {}).get("gain") for task in ("click", "hide"))
        gains = bool(clicks and clicks["low"] > 0)
        if hides is None or hides["low"] <= 0 or not (gains or policy["name"] == SERVED):
            continue
        opening = (
            f"{policy['name']} would gain clicks ({said(clicks)}) and have" if gains else f"{policy['name']} would have"
        )
        found.append({"arm": policy["name"], "gains_clicks": gains, "loses": ["hides"],
                      "sentence": f"{opening} more posts hidden than {baseline} ({said(hides)})."})  # fmt: skip
    return found


def verdict(report: dict[str, Any]) -> list[str]:
    """Sentences, the most important first."""
    by_name = {policy["name"]: policy for policy in report["policies"]}
    served, baseline = by_name.get(SERVED), report["baseline"]
    sentences = []
    if not report["off_policy"]["possible"]:
        sentences.append(report["off_policy"]["reason"])
    elif served is None:
        sentences += [_gain_sentence(policy, baseline) for policy in report["policies"] if policy["name"] != baseline]
    else:
        sentences.append(_served_sentence(served, baseline))
        rivals = [
            policy for policy in report["policies"] if policy["headline"] and policy["name"] not in (SERVED, UNTUNED)
        ]
        if served["headline"] and rivals:
            best = max(rivals, key=lambda policy: policy["headline"]["value"])
            word = "above" if served["headline"]["value"] > best["headline"]["value"] else "not above"
            sentences.append(
                f"It is {word} the best of the others, {best['name']} ({best['headline']['value']:.3f} per request)."
            )
    if report["truth"]["known"] and served:
        relative = served["truth"]["relative"]
        sentences.append(
            f"The log is simulated, so the truth is known: {SERVED} is truly worth {served['truth']['value']:.3f} per request"
            + ("" if relative is None else f", {relative:+.1%} over {baseline}")
            + f", of {report['truth']['ceiling']:.3f} that an all-knowing policy reaches; {report['truth']['covered']} of "
            f"{report['truth']['judged']} intervals hold the true value."
        )
    compared = [
        metrics
        for metrics in report["tasks"].values()
        if metrics["auc"] is not None and metrics["logistic_auc"] is not None
    ]
    if compared:
        ahead = sum(metrics["auc"] > metrics["logistic_auc"] for metrics in compared)
        sentences.append(
            f"The multi-task ranker orders better than logistic regression on {ahead} of {len(compared)} tasks."
        )
    recall = report["recall"]["recall_at_100"]
    if {"merged", "popular", "social"} <= set(recall):
        sentences.append(f"Recall@100 of all paths merged is {recall['merged']:.3f}, of popularity alone {recall['popular']:.3f}, "
                         f"of friends alone {recall['social']:.3f}.")  # fmt: skip
    return sentences


def _served_sentence(served: dict[str, Any], baseline: str) -> str:
    sentence = _gain_sentence(served, baseline).replace(SERVED, "the served policy", 1)
    if served["gain"] and served["gain"]["high"] < 0:
        sentence += " It should not go out."
    return sentence[0].upper() + sentence[1:]


def _gain_sentence(policy: dict[str, Any], baseline: str) -> str:
    name, gain = policy["name"], policy["gain"]
    if gain is None:
        return f"The log cannot say what {name} is worth against {baseline}: {policy['refusal'] or 'the baseline has no estimate'}."
    size = "" if gain["relative"] is None else f" ({gain['relative']:+.1%})"
    about = f"{gain['value']:+.3f} per request{size}, 95% interval {gain['low']:+.3f} to {gain['high']:+.3f}"
    if gain["low"] > 0:
        return f"{name} is better than {baseline}: {about}."
    if gain["high"] < 0:
        return f"{name} is worse than {baseline}: {about}."
    return f"The log cannot tell {name} from {baseline}: {about}. A longer log or more exploration would."
