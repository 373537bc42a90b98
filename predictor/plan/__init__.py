"""Plans: what to train with on given GPUs. The order: the space, what it costs, what fits, the walk, the answer."""

from predictor.plan.plan import Plan, plan
from predictor.plan.search import Wanted

__all__ = ["Plan", "Wanted", "plan"]
