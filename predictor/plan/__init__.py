"""Plans: finds the cheapest training configuration that fits the given GPUs.

The modules in the order of a search: ``space`` lists the settings, ``cost`` estimates their speed, ``memory`` decides
what fits, ``search`` walks through them, and ``plan`` builds the result.

Known limitations:

- Only training is planned, not inference.
- Speed is a stated estimate from data sheet rates. It was never measured, and no part of a step overlaps another.
- Attention's own products and convolutions are left out of the estimate, and an update costs the same with every
  optimizer.
- 8-bit AdamW is not tried with optimizer offload or with tensor parallelism, and data parallelism over tensor
  parallelism is not tried under autocast.
- What each knob gives is predicted only where a formula exists already; nothing is traced for it.
- There are no Trainer arguments for FSDP2, nor for tensor parallelism with plain data parallelism.
"""

from predictor.plan.plan import Plan, plan
from predictor.plan.search import Telling, Wanted

__all__ = ["Plan", "Telling", "Wanted", "plan"]
