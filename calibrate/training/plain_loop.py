"""peakcast around a loop of the user's own.

    from calibrate import watch
    with watch(model, optimizer=optimizer, record="run.json") as w:
        for batch in loader:
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            w.step()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from calibrate.training import loop_keys, reading
from calibrate.training.messages import on_stderr
from calibrate.training.watcher import STEPS, Watcher
from predictor.workload.workload import Workload

ASSUMED = {"gradient_accumulation_steps": 1, "max_grad_norm": 0.0, "use_liger_kernel": False}
"""What a plain loop does not show before its first step, and what is taken where the user does not say."""


@contextmanager
def watch(what: Any, *, optimizer: Any = None, record: str | None = None, steps: int | None = STEPS,
          show: str = "line", snapshot: str | None = None, tell: Callable[[str], None] = on_stderr,
          **keys: Any) -> Iterator[Watcher]:
    """Predict at the start, look after each ``step()``, write the record.

    Args:
        what: a :class:`predictor.Workload`, or the model as the loop calls it (a model of transformers, in
            DistributedDataParallel or as DeepSpeed's engine too): then the prediction comes with the first batch.
        optimizer: of a model that is not DeepSpeed's.
        record, steps, show, snapshot, tell: as :class:`calibrate.PeakcastCallback`.
        keys: of a workload, that only the loop knows: ``max_grad_norm`` (none: gradients are not clipped),
            ``use_liger_kernel``; ``gradient_accumulation_steps`` and ``mixed_precision``, which the first step and
            the first forward show otherwise.

    Yields:
        what has ``step()``, to call after each optimizer step, ``prediction`` and ``record``.

    Raises:
        InputError: ``show`` is none of these.
    """
    import torch

    watcher = Watcher(loop="watch", record=record, steps=steps, show=show, snapshot=snapshot, tell=tell)
    given = what if isinstance(what, Workload) else None
    model = None if given is not None else what
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    watcher.count(device)

    def read() -> reading.Reading:
        if given is not None:
            return reading.given(given, device)
        made = reading.of_loop(model, optimizer, device, watcher.directory())
        known = {**made.keys, **keys}
        assumed = {name: value for name, value in ASSUMED.items() if name not in keys and "deepspeed" not in known}
        return reading.Reading(known, made.document, assumed)

    rank, ranks = loop_keys.ranks()
    if given is not None:
        steps_each = given.gradient_accumulation_steps
    elif hasattr(what, "gradient_accumulation_steps"):  # DeepSpeed's engine
        steps_each = what.gradient_accumulation_steps()
    else:
        steps_each = keys.get("gradient_accumulation_steps")
    watcher.begin(read, reading.inner(model), optimizer or getattr(model, "optimizer", None), rank, ranks, steps_each)
    try:
        yield watcher
    except torch.OutOfMemoryError as error:
        watcher.failed(" ".join(str(error).split()))
        raise
    except BaseException as error:
        watcher.broken_off(error)
        raise
    watcher.end()
