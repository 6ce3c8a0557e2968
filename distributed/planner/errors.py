"""What a question to the planner can get wrong, each as one sentence with the numbers."""


class PlanError(ValueError):
    """A model, machine, layout or question that cannot be; the sentence says why and names the nearest that can."""
