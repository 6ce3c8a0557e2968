"""Recall: one module per path (social, collaborative, popular, vector), their merge, training and judging.

`recall.train.train_recall` is the front door; `recall.runtime.RecallRuntime` is what serving loads.
"""
