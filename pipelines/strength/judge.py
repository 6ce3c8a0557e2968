"""How good strengths are on a held-out week: order, log loss and calibration, beside the decayed contacts alone.

Shapes: N friendships.
"""

import numpy as np

SLOW_DAYS = 60.0
NEW_DAYS = 7.0
DECILES = 10


def judge(contacted_N: np.ndarray, strength_N: np.ndarray, plain_N: np.ndarray, friendship_days_N: np.ndarray,
          quiet_days_N: np.ndarray) -> dict:  # fmt: skip
    """Figures over all friendships, the slow and the new ones.

    contacted_N: boolean, what the week brought. strength_N, plain_N: probabilities (of the model; of the decayed
    contacts alone). quiet_days_N: days since the user's latest contact. A figure is None where a slice has one outcome.
    """
    slices = {
        "all": np.ones(len(contacted_N), bool),
        "slow": (friendship_days_N >= SLOW_DAYS) & (quiet_days_N >= SLOW_DAYS),
        "new": friendship_days_N < NEW_DAYS,
    }
    return {
        name: {
            "friendships": int(inside_N.sum()), "contact_rate": _rate(contacted_N[inside_N]),
            "learned": _figures(contacted_N[inside_N], strength_N[inside_N]),
            "contacts_14d": _figures(contacted_N[inside_N], plain_N[inside_N]),
        }
        for name, inside_N in slices.items()
    }  # fmt: skip


def _rate(contacted_N: np.ndarray) -> float | None:
    return round(float(contacted_N.mean()), 6) if len(contacted_N) else None


def _figures(contacted_N: np.ndarray, chance_N: np.ndarray) -> dict | None:
    from sklearn.metrics import log_loss, roc_auc_score

    if contacted_N.all() or not contacted_N.any():
        return None
    deciles = calibration(contacted_N, chance_N)
    weight = np.array([one["friendships"] for one in deciles]) / len(contacted_N)
    gap = np.array([abs(one["predicted"] - one["observed"]) for one in deciles])
    return {
        "auc": round(float(roc_auc_score(contacted_N, chance_N)), 6),
        "log_loss": round(float(log_loss(contacted_N, chance_N, labels=[False, True])), 6),
        "calibration_error": round(float(weight @ gap), 6),
        "deciles": deciles,
    }


def calibration(contacted_N: np.ndarray, chance_N: np.ndarray) -> list[dict]:
    """Tenths of the friendships by predicted chance, lowest first: how many, mean prediction, share in contact."""
    parts = np.array_split(np.argsort(chance_N, kind="stable"), min(DECILES, len(chance_N)))
    return [
        {
            "friendships": len(part),
            "predicted": round(float(chance_N[part].mean()), 6),
            "observed": round(float(contacted_N[part].mean()), 6),
        }
        for part in parts
    ]
