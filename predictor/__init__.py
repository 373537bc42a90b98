"""Predicts the peak GPU memory of training multimodal models, offline.

    from predictor import Workload, predict

    prediction = predict(Workload(model="llava-1.5-7b", sequence_length=2048, zero_stage=2, data_parallel_size=8))
    prediction.peak_allocated_bytes

Known limitations:

- Only the listed engines, optimizers and model types are predicted; other settings are rejected with an error.
- Combinations of features whose prediction was not verified are rejected, too.
- The reference training loop is predicted. Memory of data loaders, checkpoint saving, and the Trainer's extra buffers
  is not modelled, unless the job was learned from a script.
- Memory outside PyTorch's allocator (CUDA context, NCCL, libraries) has an assumed range without a profile
  that measured it.
- All ranks have the same GPU. Of several kinds in one job each is predicted alone.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes as long to import as the start of the command
if TYPE_CHECKING:
    from typing import Any

    from predictor.answer.course_prediction import predict_course
    from predictor.answer.predict import predict
    from predictor.answer.prediction import Prediction
    from predictor.workload.workload import Workload

_HOMES = {"Workload": "workload.workload", "Prediction": "answer.prediction", "predict": "answer.predict",
          "predict_course": "answer.course_prediction"}

__all__ = ["Prediction", "Workload", "predict", "predict_course"]


def __getattr__(name: str) -> Any:
    """Imports a name on first use, so that the command shows help and finds mistakes before numpy is loaded."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
