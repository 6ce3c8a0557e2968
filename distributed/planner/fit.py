"""Timed sweeps to one machine's constants: non-negative least squares over relative errors, or a sentence why they say nothing."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from distributed.planner.collectives import bytes_sent, ring_steps
from distributed.planner.errors import PlanError
from distributed.planner.layout import Layout
from distributed.planner.machines import Cluster, Efficiency, Kernels, Level, cluster_from
from distributed.planner.models import Experts, Model
from distributed.planner.running import Work, layer_work, products_s

Points = dict[tuple[Any, ...], tuple[float, float]]
"""What was timed to (seconds, noise), as `sweeps.Timed`, over all ranks."""

MOST_NOISE = {"kernels": 0.5, "collectives": 4.0}
"""Median spread over median from which on repeated timings say nothing."""
MOST_RESIDUAL = {"products": 0.4, "layers": 0.4, "collectives": 1.5}
"""Mean factor less one between fit and timings from which on the machine does not follow it."""


def fitted(name: str, points: Points, cores: int, memory_gib: float) -> dict[str, Any]:
    """The machine's description, as `cluster_from` reads it. `PlanError` where the timings contradict themselves."""
    for group, most in MOST_NOISE.items():
        noise = statistics.median(
            v[1] for key, v in points.items() if (key[0] == "collective") == (group == "collectives")
        )
        if noise > most:
            raise PlanError(f"{name} is too busy to be calibrated: repeated timings of the same {group} spread by {noise:.0%} "
                            f"of their median, at most {most:.0%} can be fitted; try again when less runs here")  # fmt: skip
    errors: dict[str, float] = {}
    tflops, half_size = _products(points, errors)
    moved, seconds = next((key[1], v[0]) for key, v in points.items() if key[0] == "memory")
    attention = next((2.0 * key[1] * key[2] ** 2 * key[3] / v[0] for key, v in points.items() if key[0] == "attention"))
    values: dict[str, Any] = {
        "gpus": cores,
        "tflops": tflops,
        "memory_gib": memory_gib,
        "reserve_gib": min(0.5, memory_gib / 8),
        "memory_gb_per_s": moved / seconds / 1e9,
        "cores": cores,
        "levels": [_collectives(points, cores, errors)],
        "efficiency": asdict(
            Efficiency(1.0, half_size, 1.0, attention / tflops["fp32"] / 1e12, 0.0, _overlap(points), 0.0)
        ),
    }
    values["kernels"] = _kernels(points, cluster_from(values, cores, name), errors)
    for what, error in errors.items():
        if error > MOST_RESIDUAL[what]:
            raise PlanError(f"{name} cannot be calibrated: its {what} are off the best fit by {error:.0%} on average, at most "
                            f"{MOST_RESIDUAL[what]:.0%} is taken for a fit; try again when less runs here")  # fmt: skip
    told = {"tflops": "products", "efficiency": "products", "kernels": "layers", "levels": "collectives"}
    values["sources"] = {what: f"measured here; mean error of the fit {errors[of]:.0%}" for what, of in told.items()}
    values["sources"]["memory"] = "the machine's, a core's share; bandwidth of a sum out of cache, all cores at work"
    return values


def least_squares(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """Non-negative coefficients that minimise relative errors, and by what mean factor less one the fit is off."""
    coefficients = _solved(rows, seconds, seconds)
    return coefficients, _off(np.asarray(rows) @ coefficients, seconds)


def _solved(rows: Sequence[Sequence[float]], seconds: Sequence[float], whole: Sequence[float]) -> list[float]:
    """Non-negative coefficients of `seconds`, which are a part of `whole`, to which errors are relative."""
    from scipy.optimize import nnls

    design, weight = np.asarray(rows, dtype=float), 1 / np.asarray(whole)
    # Columns differ by nine orders of magnitude: scaled, so that the solver's tolerance means the same for each.
    scale = np.maximum(design.max(0), 1e-300)
    found, _ = nnls(design / scale * weight[:, None], np.asarray(seconds) * weight)
    return (found / scale).tolist()


def _off(predicted: np.ndarray, seconds: Sequence[float]) -> float:
    # Logarithms: a fit far below some timings is as wrong as one far above them.
    return float(np.expm1(np.abs(np.log(np.maximum(predicted, 1e-12) / np.asarray(seconds))).mean()))


def _products(points: Points, errors: dict[str, float]) -> tuple[dict[str, float], float]:
    """(asymptotic TFLOP/s by type, matrix size of half the speed): seconds = 2 M K N (1 + half (1/M + 1/N + 1/K)) / peak."""
    of: dict[str, list[tuple[float, float, float]]] = {}
    for key, (seconds, _) in points.items():
        if key[0] == "product":
            flops, small = 2.0 * key[2] * key[3] * key[4], sum(1.0 / size for size in key[2:])
            of.setdefault(key[1], []).append((flops, small, seconds))
    (per_flop, grows), errors["products"] = least_squares([(f, f * small) for f, small, _ in of["fp32"]],
                                                          [seconds for *_, seconds in of["fp32"]])  # fmt: skip
    if per_flop <= 0:
        raise PlanError("products of this machine get no faster with their size: there is no efficiency curve to fit")
    half = grows / per_flop
    peaks = {kind: statistics.median(f * (1 + half * small) / s for f, small, s in rows) for kind, rows in of.items()}
    return {**{kind: peak / 1e12 for kind, peak in peaks.items()}, "fp32": 1e-12 / per_flop}, half


def _collectives(points: Points, cores: int, errors: dict[str, float]) -> dict[str, Any]:
    measured, worst = [], []
    for kind in sorted({key[1] for key in points if key[0] == "collective"}):
        rows, seconds = [], []
        for key, (took, _) in points.items():
            if key[:2] == ("collective", kind):
                _, _, ranks, world, size = key[:5]
                crowd = max(1.0, world / cores) if cores else 1.0
                rows.append((crowd * ring_steps(kind, ranks), crowd * bytes_sent(kind, size, ranks)))
                seconds.append(took)
        (alpha_s, per_byte), error = least_squares(rows, seconds)
        worst.append(error)
        # A transfer that no size slows down is faster than the sweep could tell.
        per_byte = max(per_byte, 1e-12)
        measured.append({"kind": kind, "alpha_us": 1e6 * alpha_s, "gb_per_s": 1e-9 / per_byte})
    errors["collectives"] = statistics.mean(worst)
    reduce = next(one for one in measured if one["kind"] == "all_reduce")
    level = Level("loopback", 0, reduce["gb_per_s"], reduce["alpha_us"], 1.0)
    return {**asdict(level), "measured": measured}


def _overlap(points: Points) -> float:
    """Share of a collective that products running at the same time hide, over the worlds that were timed."""
    shares = []
    for world in {key[-1] for key in points if key[0] == "overlap"}:
        alone, products, both = (points["overlap", what, world][0] for what in ("collective", "products", "both"))
        shares.append(min(1.0, max(0.0, 1 - (both - products) / alone)))
    return statistics.mean(shares) if shares else 0.0


def _kernels(points: Points, cluster: Cluster, errors: dict[str, float]) -> dict[str, float]:
    """Layers less their products, by the elements that `running` counts."""
    worst: list[float] = []

    def fit(name: str, part: int, columns: list[str], ring: bool = False, less: dict[str, float] | None = None
            ) -> list[float]:  # fmt: skip
        rows, rest, whole = [], [], []
        for key, (seconds, _) in points.items():
            if key[0] != name or key[-1] != part:
                continue
            work, times = _work(key[1:6], name == "sparse"), 1 + part
            # One rank's ring has three of four blocks.
            share = 0.75 if ring else 1.0
            known = times * products_s(work.products, cluster, "fp32")
            elements = {"one": 1.0, "values": work.values, "scores": share * work.scores, "routed": work.routed}
            known += sum(elements[what] * price for what, price in (less or {}).items())
            rows.append([elements[column] for column in columns])
            rest.append(seconds - known)
            whole.append(seconds)
        prices = _solved(rows, rest, whole)
        worst.append(_off(np.asarray(whole) - np.asarray(rest) + np.asarray(rows) @ np.asarray(prices), whole))
        return prices

    found: dict[str, float] = {}
    for part, direction in enumerate(("forward", "backward")):
        one, value, score = fit("layer", part, ["one", "values", "scores"])
        plain = {"one": one, "values": value}
        (ring,) = fit("ring", part, ["scores"], True, plain)
        sparse, routed = fit("sparse", part, ["one", "routed"], less={**plain, "scores": score})
        found |= {f"layer_{direction}_us": 1e6 * one, f"value_{direction}_ns": 1e9 * value,
                  f"score_{direction}_ns": 1e9 * score, f"ring_{direction}_ns": 1e9 * ring,
                  f"sparse_{direction}_us": 1e6 * sparse, f"routed_{direction}_ns": 1e9 * routed}  # fmt: skip
    errors["layers"] = statistics.mean(worst)
    ends = [(key[1:5], v[0]) for key, v in points.items() if key[0] == "end"]
    rest = [s - 3 * products_s(((1.0, b * length, h, v),), cluster, "fp32") for (h, v, b, length), s in ends]
    end, logit = _solved([[1.0, float(b * length * v)] for (_, v, b, length), _ in ends], rest, [s for _, s in ends])
    updates = [(key[1], v[0]) for key, v in points.items() if key[0] == "update"]
    (update, each), _ = least_squares([(1.0, n) for n, _ in updates], [s for _, s in updates])
    found |= {"end_us": 1e6 * end, "logit_ns": 1e9 * logit, "update_us": 1e6 * update, "update_ns": 1e9 * each}
    found["split"] = max(1.0, points["split", 1][0] / points["split", 0][0])
    return asdict(Kernels(**found))


def _work(shape: Sequence[int], sparse: bool) -> Work:
    hidden, heads, wide, samples, sequence = shape
    # As `sweeps.EXPERTS` and `sweeps.TOP_K`, which this file must not import: it needs torch.
    experts = Experts(4, 2, wide) if sparse else None
    model = Model("sweep", 1, hidden, heads, sequence, 64, ffn=wide, gated=True, platform=True, experts=experts)
    return layer_work(model, Layout(micro_batch=samples), sparse)
