"""Table of the optimizers, under Hugging Face's names.

The names are those of transformers 5.17 (training_args.py, ``OptimizerNames``; trainer_optimizer.py builds them). A
measured job builds the class in the optimizer's line. ``predictor.engine.optimizer`` models what each class allocates.
A truth test compares each line with transformers' own handler, so a name that transformers does not have fails there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from predictor.common.errors import InputError
from predictor.common.installing import pip_install
from predictor.common.suggestions import nearest, quoted
from predictor.common.value_types import Flag, Invalid, Number


@dataclass(frozen=True)
class Optimizer:
    """One optimizer of the table.

    Attributes:
        implementation: import path of the class that a measured job builds.
        arguments: arguments of the class, besides learning rate and weight decay.
        reads: ``optim_args`` that Hugging Face passes on -> their value types.
        refused_by: engine, or engine and dtype of the weights (``torch bf16``), that cannot use it -> reason.
        not_modelled: what the prediction does not model, as sentences for the user.
        decay_allocates: whether ``weight_decay`` adds a temporary as large as the gradients.
    """

    implementation: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reads: Mapping[str, Any] = field(default_factory=dict)
    refused_by: Mapping[str, str] = field(default_factory=dict)
    not_modelled: tuple[str, ...] = ()
    decay_allocates: bool = False

    def load(self) -> type:
        """Imports the class.

        Raises:
            InputError: its package is not installed.
        """
        module, _, name = self.implementation.rpartition(".")
        try:
            return getattr(import_module(module), name)
        except ImportError as error:
            raise InputError(f"{self.implementation} cannot be imported ({error}): "
                             f"{pip_install(module.partition('.')[0])}") from None


PAGED = ("paged optimizer states: they are in managed memory, outside PyTorch's allocator; the driver moves it to the "
         "host when the GPU is full")


def listed(names: Iterable[str], last: str) -> str:
    """``a, b or c``, with ``last`` for the word before the last name."""
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end


_SGD = {"momentum": Number(), "dampening": Number(), "nesterov": Flag()}
_RMSPROP = {"momentum": Number(), "alpha": Number(), "eps": Number(), "centered": Flag()}
_ONE_GROUP = ("DeepSpeed makes Adagrad anew with all partitions in one group (stage_1_and_2.py, "
              "initialize_optimizer_states), and stops at the second one: use another optim, or engine torch")
OF_PYTORCH = {
    "adamw_torch": Optimizer("torch.optim.AdamW"),
    "adamw_torch_fused": Optimizer("torch.optim.AdamW", {"fused": True}),
    "adamw_torch_forloop": Optimizer("torch.optim.AdamW", {"foreach": False}),
    "sgd": Optimizer("torch.optim.SGD", {}, _SGD, decay_allocates=True),
    "rmsprop": Optimizer("torch.optim.RMSprop", {}, _RMSPROP, decay_allocates=True),
    "adagrad": Optimizer("torch.optim.Adagrad", {}, {"lr_decay": Number(), "eps": Number()},
                         {"deepspeed": _ONE_GROUP}),  # decay takes the place of another temporary
}
"""Optimizers of PyTorch, which update FSDP2's sharded parameters."""
_NO_DTENSOR = {"fsdp2": f"it stops at FSDP2's sharded parameters (DTensor): use {listed(OF_PYTORCH, 'or')}"}


def _blockwise(name: str, refused_by: Mapping[str, str] | None = None, **arguments: Any) -> Optimizer:
    """The line of an optimizer of bitsandbytes."""
    return Optimizer(f"bitsandbytes.optim.{name}", arguments, refused_by={**(refused_by or {}), **_NO_DTENSOR},
                     not_modelled=(PAGED,) if arguments.get("is_paged") else ())


_NO_BF16 = dict.fromkeys(("torch bf16", "ddp bf16", "fsdp2 bf16"),
                         "bitsandbytes has no 32-bit RMSprop for bf16 gradients (backends/cuda/ops.py): use rmsprop, "
                         "or DeepSpeed, whose master weights are fp32")

OPTIMIZERS: dict[str, Optimizer] = {
    **OF_PYTORCH,
    "adafactor": Optimizer("transformers.optimization.Adafactor",
                           {"scale_parameter": False, "relative_step": False}, refused_by=_NO_DTENSOR),
    "adamw_8bit": _blockwise("AdamW", optim_bits=8, is_paged=False),
    "adamw_bnb_8bit": _blockwise("AdamW", optim_bits=8, is_paged=False),
    "paged_adamw_32bit": _blockwise("AdamW", optim_bits=32, is_paged=True),
    "paged_adamw_8bit": _blockwise("AdamW", optim_bits=8, is_paged=True),
    "lion_32bit": _blockwise("Lion", optim_bits=32, is_paged=False),
    "lion_8bit": _blockwise("Lion", optim_bits=8, is_paged=False),
    "paged_lion_32bit": _blockwise("Lion", optim_bits=32, is_paged=True),
    "paged_lion_8bit": _blockwise("Lion", optim_bits=8, is_paged=True),
    "rmsprop_bnb": _blockwise("RMSprop", _NO_BF16, optim_bits=32),
    "rmsprop_bnb_8bit": _blockwise("RMSprop", _NO_BF16, optim_bits=8),
    "rmsprop_bnb_32bit": _blockwise("RMSprop", _NO_BF16, optim_bits=32),
}
"""Value of ``optim`` -> its line."""
WITH_ARGUMENTS = [name for name, line in OPTIMIZERS.items() if line.reads]
"""The optimizers that read ``optim_args``."""
DECAY_ALLOCATES = [name for name, line in OPTIMIZERS.items() if line.decay_allocates]
"""The optimizers with which ``weight_decay`` takes memory."""
DTENSOR_FALLBACK = "adamw_torch_forloop"
"""The ``optim`` that Hugging Face falls back to for a mix of DTensors and plain tensors (trainer_optimizer.py,
``_get_adamw_torch``)."""

LATER = dict.fromkeys(
    ("adamw_torch_4bit", "adamw_torch_8bit", "ademamix", "ademamix_8bit", "paged_ademamix_32bit",
     "paged_ademamix_8bit", "adamw_anyprecision", "adamw_apex_fused", "adamw_hf", "adamw_torch_xla",
     "adamw_torch_npu_fused", "galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise",
     "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "lomo", "adalomo", "grokadamw",
     "schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd", "apollo_adamw", "apollo_adamw_layerwise",
     "stable_adamw"), "use adamw_torch_fused, or one of bitsandbytes or of PyTorch")
"""Names of Hugging Face that are not supported -> what to use instead."""


def read(optim: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Checks ``optim_args`` and converts their values from text.

    Raises:
        Invalid: this optimizer does not read the argument, or its value is invalid.
    """
    entry, values = OPTIMIZERS[optim], {}
    for name, value in arguments.items():
        if name not in entry.reads:
            known = f"it reads {', '.join(entry.reads)}" if entry.reads else "it reads none"
            raise Invalid(f"has {quoted(name)}, which optim {optim} does not read{nearest(name, entry.reads)}: {known}")
        value_type = entry.reads[name]
        try:
            values[name] = value_type.from_text(value) if isinstance(value, str) else value_type.check(value)
        except Invalid as error:
            raise Invalid(f"{name} {error}") from None
    if values.get("nesterov") and (not values.get("momentum") or values.get("dampening")):
        raise Invalid("nesterov needs a momentum above 0 and no dampening")
    return values
