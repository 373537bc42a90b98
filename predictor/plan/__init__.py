"""Plans: what to train with on given GPUs. The order: the space, what it costs, what fits, the walk, the answer."""

from predictor.plan.plan import Plan, plan

__all__ = ["Plan", "plan"]
