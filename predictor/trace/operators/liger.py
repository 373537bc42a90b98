"""The operators that stand for allocations of Liger's kernels.

``predictor.trace.liger`` defines them, and calls them in the functions that are named here.
"""

from __future__ import annotations

from predictor.trace.operators.call import Call


def partials(call: Call) -> None:
    """The fp32 rows of :func:`_norm_backward`."""
    call.results(call.out[0], size=("liger_partials", (call.args[0].numel(),)))


def logits(call: Call) -> None:
    """The buffer of logits of :func:`_loss_and_gradients`."""
    states, weight = call.args
    call.results(call.out[0], size=("liger_logits", (*states.shape, len(weight), states.element_size())))
