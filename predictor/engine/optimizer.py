"""AdamW: optimizer states and what one step holds for a moment, by implementation.

Sources: torch 2.11, torch/optim/adam.py (``_init_group``, ``_single_tensor_adam``,
``_multi_tensor_adam``, ``_fused_adam``), which ``AdamW`` calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.engine.compose import Tape
from predictor.events import Factor

SCALAR_BYTES = 4


@dataclass(frozen=True)
class AdamW:
    """How one implementation of AdamW behaves.

    Attributes:
        steps_on_device: whether the step counters live on the GPU (only ``fused`` keeps them there).
        at_once: whether temporaries of all tensors of a group live together.
        temporaries: buffers as large as the tensor, in the order they come; the last two overlap.
    """

    steps_on_device: bool
    at_once: bool
    temporaries: int


VARIANTS = {
    "adamw_torch_fused": AdamW(steps_on_device=True, at_once=True, temporaries=0),
    # exp_avg_sq_sqrt = _foreach_sqrt(...), then in place
    "adamw_torch": AdamW(steps_on_device=False, at_once=True, temporaries=1),
    # denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps): two live until the quotient is made
    "adamw_torch_forloop": AdamW(steps_on_device=False, at_once=False, temporaries=2),
}
"""``optim`` -> implementation."""


def make_states(tape: Tape, variant: AdamW, sizes: Sequence[tuple[str, int]]) -> None:
    """Lazy states of the first step: per tensor a counter and two moments, all of a group first."""
    with tape.first_step_only():
        for module, size_bytes in sizes:
            if variant.steps_on_device:
                tape.allocate(SCALAR_BYTES, Factor.OPTIMIZER_STATES, "adamw::step", module=module)
            for name in ("adamw::exp_avg", "adamw::exp_avg_sq"):
                tape.allocate(size_bytes, Factor.OPTIMIZER_STATES, name, module=module)


def update(tape: Tape, variant: AdamW, *dtypes: Sequence[tuple[str, int]]) -> None:
    """Temporaries of one update over the tensors of a group; the last of each batch is dropped with the next one's.

    ``dtypes`` are the tensors, those of each dtype together in the order that foreach takes them.
    """
    kept: list[int] = []
    for batch in dtypes if variant.at_once else [[size] for sizes in dtypes for size in sizes]:
        live: list[int] = []
        for _ in range(variant.temporaries):
            made = [tape.allocate(size_bytes, Factor.TEMPORARIES, "adamw::update", module=module)
                    for module, size_bytes in batch]
            for buffer in live:
                tape.free(buffer)
            live = made
        for buffer in kept:
            tape.free(buffer)
        kept = live
    for buffer in kept:
        tape.free(buffer)
