"""Names the defaults that decide a prediction although nobody gave them: GPUs, optimizer, dtype of the weights."""

from __future__ import annotations

from collections.abc import Iterator

from predictor.answer.prediction import Prediction
from predictor.events.events import Factor
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.value_sources import DEFAULT, Source

LARGE = 0.1
"""Share of the peak from which on a factor counts as large."""


def decisive_defaults(prediction: Prediction) -> tuple[str, ...]:
    """Sentences about values that only a default gives and that matter, the most decisive first.

    Each begins with ``Assumed`` and ends with what to give instead. Empty if there are none, for inference, and for a
    learned job, which was recorded with its engine.
    """
    workload = prediction.workload
    if workload.get("mode", "training") != "training" or "engine" not in workload:
        return ()
    return (*one_gpu(prediction), *_optimizer(prediction), *_dtype(prediction))


def one_gpu(prediction: Prediction) -> Iterator[str]:
    """A sentence about one GPU that is assumed where the launcher uses several or the engine is made for several."""
    source, workload = prediction.source, prediction.workload
    if "data_parallel_size" not in prediction.filled_in or "engine" not in workload:
        return
    if source is not None and source.on_every_gpu:
        yield one_gpu(source, "--data-parallel-size")
        return
    engine = name_of(workload["engine"], workload.get("zero_stage"))
    if workload["engine"] != "torch" and ENGINES[engine].several:
        silent = f"{source.file} does not say how many" if source else "nothing says how many"
        yield f"Assumed 1 GPU: {workload['engine']} is made for several, and {silent}: give --data-parallel-size."


def one_gpu(source: Source, option: str) -> str:
    """The sentence about one GPU that is assumed for a launcher; empty if what was read starts none.

    Args:
        option: which says how many GPUs there are.
    """
    return (f"Assumed 1 GPU: {source.on_every_gpu} uses every GPU of the machine, and {source.file} does not say how "
            f"many: give {option}.") if source.on_every_gpu else ""


def _optimizer(prediction: Prediction) -> Iterator[str]:
    share = _share(prediction, Factor.OPTIMIZER_STATES)
    if share >= LARGE and _by_default(prediction, "optim"):
        of = f", the default of {prediction.source.framework}" if prediction.source else ""
        yield (f"Assumed optim {prediction.workload['optim']}{of}, whose states are {share:.0%} of the peak: give "
               "--optim.")


def _dtype(prediction: Prediction) -> Iterator[str]:
    rows = prediction.source.values if prediction.source else ()
    if any(row.key == "dtype" and row.origin == DEFAULT and row.because.endswith("assumed") for row in rows) and \
            _share(prediction, Factor.PARAMETERS) >= LARGE:
        yield (f"Assumed weights of {prediction.workload['dtype']}: they are loaded as the checkpoint has them, which "
               "is not read: give --dtype.")


def _by_default(prediction: Prediction, key: str) -> bool:
    rows = [row for row in (prediction.source.values if prediction.source else ()) if row.key == key]
    return all(row.origin == DEFAULT for row in rows) if rows else key in prediction.filled_in


def _share(prediction: Prediction, factor: Factor) -> float:
    return prediction.factors.get(factor, 0) / max(1, prediction.peak_allocated_bytes)
