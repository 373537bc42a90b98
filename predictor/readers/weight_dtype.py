"""The dtype of the weights, and autocast over them, where DeepSpeed does not decide."""

from __future__ import annotations

from predictor.common.value_types import Choice
from predictor.model import hub
from predictor.readers.configuration import Reading
from predictor.readers.deepspeed import uncast
from predictor.workload.value_sources import READ, value

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16",
          "torch.float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
DTYPE, DTYPE_OR_AUTO = (Choice((*first, "bf16", "fp16", "fp32"), {}, DTYPES) for first in ((), ("auto",)))
KEYS = ("dtype", "torch_dtype")
"""Of a ``config.json``, as transformers 5 and earlier releases write it."""


def precision(reading: Reading, weights: str | None, *names: str, because: str = "") -> None:
    """bf16 and fp16 of the training arguments are autocast; weights None or "auto": as the checkpoint has them."""
    if reading.half:
        reading.put("mixed_precision", reading.half, reading.half)
    if weights not in (None, "auto"):
        reading.put("dtype", weights, *names, because=because)
    else:
        loaded(reading, *names)
    dtype = reading.given.options.get("dtype") or reading.workload["dtype"]
    if "deepspeed" in reading.workload and dtype != "fp32":  # it casts nothing, or it would have decided
        raise reading.wrong("deepspeed", f"is given, but {uncast(dtype)}")


def loaded(reading: Reading, *names: str) -> None:
    """Weights as ``from_pretrained`` loads them where no dtype is asked for: as the model's ``config.json`` says
    (transformers 5.17, modeling_utils.py, ``_get_dtype``); assumed, and named, where it does not, as for known names.
    """
    found = said_by_model(reading)
    if found:
        key, dtype = found
        reading.workload["dtype"] = dtype
        reading.rows["dtype"] = value("dtype", dtype, READ, reading.model, key)
        return
    dtype, because = ("fp32", "loss scaling takes no gradients of fp16") if reading.half == "fp16" else \
        ("bf16", "dtype auto: as the checkpoint has them, bf16 assumed")
    reading.put("dtype", dtype, *names, because=because)
    reading.note(f"the dtype of the checkpoint, which decides that of the weights: {dtype} is assumed (give dtype)")


def said_by_model(reading: Reading) -> tuple[str, str] | None:
    """The key and the dtype in the model's own ``config.json``."""
    config = hub.config(reading.model)
    document = config.document if config else {}
    return next(((key, DTYPES[str(document[key])]) for key in KEYS if str(document.get(key)) in DTYPES), None)
