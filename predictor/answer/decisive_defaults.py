"""Names the defaults that decide a prediction although nobody gave them: GPUs, pictures, optimizer, dtype."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from predictor.answer.prediction import Prediction
from predictor.events.events import Factor
from predictor.formula import installed_versions
from predictor.profile.other_releases import moved
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.keys import PINNED
from predictor.workload.value_sources import DEFAULT, OVERRIDDEN, Source

TRACED = ("torch", "transformers")
"""Packages whose release decides a traced formula."""
EXTRAPOLATED = "extrapolated"
"""How notes of learned jobs begin that are outside of the recorded shapes."""
LARGE = 0.1
"""Share of the peak from which on a factor counts as large."""


def decisive_defaults(prediction: Prediction) -> tuple[str, ...]:
    """Sentences about values that only a default gives and that matter, the most decisive first.

    Each begins with ``Assumed`` and ends with what to give instead. Empty if there are none, and for inference. A
    learned job was recorded with its engine: of it they say how far it is from what was recorded.
    """
    workload = prediction.workload
    if "learned" in workload:
        return tuple(f"{note[0].upper()}{note[1:]}: no interval holds there." for note in prediction.not_modelled
                     if note.startswith(EXTRAPOLATED))
    if workload.get("mode", "training") != "training" or "engine" not in workload:
        return ()
    return (*filter(None, [assumed_gpus_of(prediction)]), *_pictures(prediction), *_optimizer(prediction),
            *_dtype(prediction), *_releases(prediction))


def assumed_gpus_of(prediction: Prediction) -> str:
    """:func:`assumed_gpus` of a prediction; empty for a learned job, too."""
    workload = prediction.workload
    return "" if "engine" not in workload else assumed_gpus(
        prediction.source, prediction.filled_in, workload["engine"], workload.get("zero_stage"))


def assumed_gpus(source: Source | None, filled_in: Collection[str], engine: str, zero_stage: int | None,
                 option: str = "--data-parallel-size") -> str:
    """Says that one GPU is assumed where the launcher would use several or the engine is made for several; else empty.

    Args:
        option: says how many GPUs there are.
    """
    if "data_parallel_size" not in filled_in:
        return ""
    if source is not None and source.on_every_gpu:
        return (f"Assumed 1 GPU: {source.on_every_gpu} uses every GPU of the machine, and {source.file} does not say "
                f"how many: give {option}.")
    if engine == "torch" or not ENGINES[name_of(engine, zero_stage)].several:
        return ""
    silent = f"{source.file} does not say how many" if source else "nothing says how many"
    return f"Assumed 1 GPU: {engine} is made for several, and {silent}: give {option}."


def _pictures(prediction: Prediction) -> Iterator[str]:
    """The size of the pictures, where only the largest that the framework lets through is known, or it resizes those of
    an option."""
    source, images = prediction.source, prediction.workload.get("images_per_sample")
    row = next((row for row in source.values if row.key == "image_size" and row.origin != OVERRIDDEN), None) \
        if source and images else None
    if source is None or row is None:
        return
    name, size = source.framework.partition(" (")[0], prediction.workload["image_size"]
    if "image_size" in source.applied:
        yield f"Assumed pictures of {size} pixels a side ({row.because}): change {row.names[0]} for larger ones."
    else:
        yield (f"Assumed pictures of {size} pixels a side, {images} a sample, the largest that {name} lets through: "
               "give --image-size, --images-per-sample.")


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


def _releases(prediction: Prediction) -> Iterator[str]:
    """The usual releases, where others are installed, and how much those changed the jobs that were compared."""
    if "versions" not in prediction.filled_in:
        return
    installed = installed_versions.versions()
    others = [f"{name} {installed[name]}" for name in TRACED if installed.get(name, PINNED[name]) != PINNED[name]]
    if others:
        seen = moved(installed.get("torch", PINNED["torch"]))
        usual = " and ".join(f"{name} {PINNED[name]}" for name in TRACED)
        yield (f"Assumed {usual}, for which a formula is shipped. {' and '.join(others)} may need another amount: "
               f"of {seen.jobs} jobs, torch {seen.torch} reserved {seen.lowest:+.1%} to {seen.highest:+.1%}. "
               "--python PATH predicts for the releases of that Python.")


def _by_default(prediction: Prediction, key: str) -> bool:
    rows = [row for row in (prediction.source.values if prediction.source else ()) if row.key == key]
    return all(row.origin == DEFAULT for row in rows) if rows else key in prediction.filled_in


def _share(prediction: Prediction, factor: Factor) -> float:
    return prediction.factors.get(factor, 0) / max(1, prediction.peak_allocated_bytes)
