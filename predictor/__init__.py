"""Predicts the peak GPU memory of training multimodal models, offline.

    from predictor import Workload, predict

    prediction = predict(Workload(model="llava-1.5-7b", sequence_length=2048, zero_stage=2, data_parallel_size=8))
    prediction.peak_allocated.bytes
"""

import importlib

_HOMES = {"Workload": "workload.workload", "Prediction": "answer.prediction", "predict": "answer.predict"}

__all__ = sorted(_HOMES)


def __getattr__(name: str):
    """Import on first use: the command shows help and finds mistakes before numpy is loaded."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
