"""What the report's terms mean, in a short sentence each, for a reader who decides about a feed and not about statistics."""

GROUP_WORDS = {
    "by position": "weigh each post at the place where it stood. They take it that a post earns the same there whatever stands around it.",
    "by exposure": "also use what a post earned at other places, allowing for how often each place is looked at. They need the least log.",
    "by slate": "weigh posts together, so what stands above may act on what is done below. They need by far the most log.",
}

ESTIMATOR_WORDS = {
    "ips": "each logged reward counts as much more as the new policy would show that post more often",
    "clipped_ips": "ips with no reward counting more than a limit",
    "snips": "ips divided by the sum of the weights; steadier",
    "dm": "a model's forecast alone; as good as the model",
    "dr": "forecast plus weighted correction: right if either part is",
    "sndr": "dr with its correction divided by the sum of the weights",
    "clipped_dr": "dr with no weight above a limit",
    "switch_dr": "dr that trusts the forecast where weights are large",
    "dros": "dr that trusts the forecast the more, the larger the weight",
    "sg_ips": "ips with large weights bent down",
    "sg_dr": "dr with large weights bent down",
    "pbm": "rewards weighed by how often the new policy would have the post looked at",
    "pbm_dr": "a forecast, corrected by rewards weighed by how often the new policy would have the post looked at",
    "replay": "only feeds that came out by chance just as the new policy would have them",
    "sips": "whole feeds weighed as one; needs the same feed to have been shown",
    "snsips": "sips divided by the sum of the weights",
    "rips": "a post weighed together with those above it",
    "snrips": "rips divided by the sum of the weights",
    "cascade_dr": "rips on top of a forecast of what follows",
    "sncascade_dr": "cascade_dr divided by the sums of the weights",
}

GLOSSARY = {
    "Policy": "a rule that decides which posts a person sees, and in what order.",
    "Replay": "asking, for feeds that were really shown, what another policy would have shown, and what that would have earned.",
    "Value": "what one feed earns: each action counts what the product says it is worth, a click being 1.",
    "95% interval": "where the true figure most likely lies; if this were done again and again, 95 of 100 such intervals would hold it.",
    "Baseline": "the policy that all others are measured against.",
    "p": "how likely so large a gain is by luck alone, if there were none; below 0.05 is usually believed. It allows for having "
         "compared several policies (Holm).",
    "Propensity": "the chance with which the feed of the time showed a post at a place. Without it nobody can say what another "
                  "policy would have earned.",
    "Weight": "how much more often the new policy would show a post there than the log did. One huge weight means that a single "
              "chance event decides.",
    "Effective samples": "how many equally weighed observations the log is worth for this policy. Few means: do not trust the figure.",
    "Unsupported": "the share of what the policy shows that the log never shows there, so it can say nothing about it.",
    "Estimator": "a way to compute the value from the log. They differ in what they take for granted; when they agree, good.",
    "AUC": "how often a post that got the action is scored above one that did not; 0.5 is guessing, 1 is perfect.",
    "AUC per viewer": "the same within each person's own feeds (GAUC), which is what a feed needs.",
    "Log loss": "how far off the predicted chances are; smaller is better.",
    "Calibration error": "by how much predicted chances miss the observed rates on average; 0 means they say what they mean.",
    "NDCG": "how close an order is to the best one, the top counting most; 1 is the best order.",
    "MRR": "one over the place of the first post that got the action, averaged: 1 when it is always on top.",
    "Recall": "which share of the posts that people acted on is among the first few.",
    "Arm": "the people who were given one policy, for as long as the log lasts.",
    "Tie": "a friendship; it got weaker when it ended, or when there was less contact in the second half of the log than in the first.",
}  # fmt: skip
