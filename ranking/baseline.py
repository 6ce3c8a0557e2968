"""The baseline beside every ranker: one logistic regression per task on the very same transformed inputs."""

import numpy as np

from contracts.tasks import TASK_NAMES
from ranking.metrics import auc


def logistic_aucs(train_ND: np.ndarray, train_labels_NT: np.ndarray, test_ND: np.ndarray, test_labels_NT: np.ndarray,
                  tasks_T: np.ndarray) -> dict[str, float]:  # fmt: skip
    """Test AUC per learnt task of scikit-learn's logistic regression (L2, C = 1)."""
    from sklearn.linear_model import LogisticRegression

    aucs = {}
    for column in np.flatnonzero(tasks_T):
        known_N = np.isfinite(train_labels_NT[:, column])
        rows_ND = train_ND if known_N.all() else train_ND[known_N]
        model = LogisticRegression(max_iter=500).fit(rows_ND, train_labels_NT[known_N, column])
        tested_N = np.isfinite(test_labels_NT[:, column])
        scores_N = test_ND[tested_N] @ model.coef_[0] + model.intercept_[0]
        aucs[TASK_NAMES[column]] = auc(test_labels_NT[tested_N, column], scores_N)
    return aucs
