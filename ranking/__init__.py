"""Ranking: from samples to a pre-ranker and a multi-task ranker, and the scorers that serve both.

`train_prerank` and `train_ranker` (`ranking.train`) make the artifacts; `PrerankScorer` and `RankerScorer`
(`ranking.scorers`) run them without LightGBM and without torch.
"""
