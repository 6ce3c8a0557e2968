"""Platt calibration: one slope and one intercept per task, fitted on validation logits.

Platt 1999, "Probabilistic Outputs for Support Vector Machines". At the maximum of the likelihood with an intercept, the
mean calibrated probability equals the label rate.
"""

import numpy as np

_FEWEST_POSITIVES = 20
"""With fewer, a slope would be fitted to chance: only the intercept is."""


def fit_platt(logits_N: np.ndarray, labels_N: np.ndarray) -> tuple[float, float]:
    """(slope, intercept) that maximise the likelihood of labels (N,) given slope * logit + intercept, by Newton steps.

    The slope stays 1 with few positives or where the fit would turn the order round. Without both labels: (1, 0).
    """
    positives = labels_N.sum()
    if not 0 < positives < len(labels_N):
        return 1.0, 0.0
    if positives >= _FEWEST_POSITIVES:
        slope, intercept = _newton(
            np.stack([logits_N, np.ones(len(logits_N))], axis=1), labels_N, np.zeros(len(logits_N))
        )
        if slope > 0:
            return slope, intercept
    (intercept,) = _newton(np.ones((len(logits_N), 1)), labels_N, logits_N)
    return 1.0, intercept


def _newton(design_NK: np.ndarray, labels_N: np.ndarray, offset_N: np.ndarray) -> tuple[float, ...]:
    beta_K = np.zeros(design_NK.shape[1])
    rate = labels_N.mean()
    beta_K[-1] = np.log(rate / (1 - rate)) - offset_N.mean()
    loss = _loss(design_NK @ beta_K + offset_N, labels_N)
    for _ in range(100):
        chances_N = _sigmoid(design_NK @ beta_K + offset_N)
        gradient_K = design_NK.T @ (chances_N - labels_N)
        hessian_KK = design_NK.T @ (design_NK * (chances_N * (1 - chances_N))[:, None])
        step_K = np.linalg.solve(hessian_KK + 1e-9 * np.eye(len(beta_K)), gradient_K)
        scale = 1.0
        while (new := _loss(design_NK @ (beta_K - scale * step_K) + offset_N, labels_N)) > loss and scale > 1e-6:
            scale /= 2
        beta_K, loss = beta_K - scale * step_K, new
        if np.abs(gradient_K).max() < 1e-9 * len(labels_N):
            break
    return tuple(beta_K.tolist())


def _loss(logits_N: np.ndarray, labels_N: np.ndarray) -> float:
    return float((np.logaddexp(0.0, logits_N) - labels_N * logits_N).sum())


def _sigmoid(logits_N: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -logits_N))
