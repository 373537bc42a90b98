"""Sets the dtype of the weights, and autocast, where DeepSpeed does not decide them."""

from __future__ import annotations

from predictor.common.value_types import Choice
from predictor.model import hub
from predictor.readers.deepspeed import uncast_message
from predictor.readers.reading import Reading
from predictor.workload.value_sources import READ, value

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16",
          "torch.float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
WRITTEN = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""A dtype as frameworks write it."""
DTYPE, DTYPE_OR_AUTO = (Choice((*first, "bf16", "fp16", "fp32"), {}, DTYPES) for first in ((), ("auto",)))
KEYS = ("dtype", "torch_dtype")
"""Key of the dtype in a ``config.json``, in transformers 5 and in earlier releases."""


def precision(reading: Reading, weights: str | None, *names: str, because: str = "") -> None:
    """Sets ``mixed_precision`` from the arguments ``bf16`` and ``fp16``, and ``dtype`` from ``weights``.

    ``weights`` None or "auto" means the dtype of the checkpoint.

    Raises:
        InputError: DeepSpeed with weights of 16 bits and neither bf16 nor fp16 on.
    """
    if reading.half:
        reading.put("mixed_precision", reading.half, reading.half)
    if weights not in (None, "auto"):
        reading.put("dtype", weights, *names, because=because)
    else:
        loaded(reading, *names)
    dtype = reading.input.options.get("dtype") or reading.workload["dtype"]
    # DeepSpeed does not cast these weights; otherwise it would have set the dtype
    if "deepspeed" in reading.workload and dtype != "fp32":
        raise reading.wrong("deepspeed", f"is given, but {uncast_message(dtype)}")


def loaded(reading: Reading, *names: str) -> None:
    """Sets the dtype in which ``from_pretrained`` loads weights by default: that in the model's ``config.json``
    (transformers 5.17, modeling_utils.py, ``_get_dtype``). Without one, as for known names, the dtype is assumed and a
    note says so.
    """
    own = dtype_of_model(reading)
    if own:
        key, dtype = own
        reading.workload["dtype"] = dtype
        reading.rows["dtype"] = value("dtype", dtype, READ, reading.model, key)
        return
    dtype, because = ("fp32", "loss scaling takes no gradients of fp16") if reading.half == "fp16" else \
        ("bf16", "dtype auto: as the checkpoint has them, bf16 assumed")
    reading.put("dtype", dtype, *names, because=because)
    reading.note(f"the dtype of the checkpoint, which decides that of the weights: {dtype} is assumed (give dtype)")


def dtype_of_model(reading: Reading) -> tuple[str, str] | None:
    """The key and the dtype in the model's own ``config.json``; None without them."""
    config = hub.config(reading.model)
    document = config.document if config else {}
    return next(((key, DTYPES[str(document[key])]) for key in KEYS if str(document.get(key)) in DTYPES), None)
