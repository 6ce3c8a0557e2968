"""The behaviour-sequence ranker: a causal transformer over a viewer's last actions, which each candidate looks back on.

`train_sequence_ranker` (`ranking.sequence.train`) makes the artifact, `SequenceScores` (`ranking.sequence.artifact`) reads it.
"""
