"""peakcast around the user's own training loop.

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
"""Settings that a plain loop does not show before its first step, with the values that hold unless the user sets them.
"""


@contextmanager
def watch(what: Any, *, optimizer: Any = None, record: str | None = None, steps: int | None = STEPS,
          show: str = "line", snapshot: str | None = None, tell: Callable[[str], None] = on_stderr,
          **keys: Any) -> Iterator[Watcher]:
    """Predict at the start, check the memory after each ``step()``, write the record.

    Args:
        what: a :class:`predictor.Workload`, or the model as the loop calls it: a transformers model, also inside
            DistributedDataParallel or DeepSpeed's engine. For a model, the prediction comes with the first batch.
        optimizer: the optimizer, unless DeepSpeed's engine holds it.
        record, steps, show, snapshot, tell: as :class:`calibrate.PeakcastCallback`.
        keys: workload keys that only the loop knows: ``max_grad_norm`` (default: gradients are not clipped),
            ``use_liger_kernel``; ``gradient_accumulation_steps`` and ``mixed_precision``, which are otherwise read from
            the first step and the first forward.

    Yields:
        the watcher: call its ``step()`` after each optimizer step, and read ``prediction`` and ``record``.

    Raises:
        InputError: ``show`` is none of these.
    """
    import torch

    watcher = Watcher(loop="watch", record=record, steps=steps, show=show, snapshot=snapshot, tell=tell)
    user_workload = what if isinstance(what, Workload) else None
    model = None if user_workload is not None else what
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    watcher.count(device)

    def read() -> reading.Reading:
        if user_workload is not None:
            return reading.from_workload(user_workload, device)
        loop_reading = reading.from_loop(model, optimizer, device, watcher.directory())
        all_keys = {**loop_reading.keys, **keys}
        assumed = {name: value for name, value in ASSUMED.items() if name not in keys and "deepspeed" not in all_keys}
        return reading.Reading(all_keys, loop_reading.document, assumed)

    rank, ranks = loop_keys.ranks()
    steps_each: int | None
    if user_workload is not None:
        steps_each = user_workload.gradient_accumulation_steps
    elif hasattr(what, "gradient_accumulation_steps"):  # DeepSpeed's engine
        steps_each = what.gradient_accumulation_steps()
    else:
        steps_each = keys.get("gradient_accumulation_steps")
    watcher.begin(read, reading.unwrapped(model), optimizer or getattr(model, "optimizer", None), rank, ranks,
                  steps_each)
    try:
        yield watcher
    except torch.OutOfMemoryError as error:
        watcher.failed(" ".join(str(error).split()))
        raise
    except BaseException as error:
        watcher.broken_off(error)
        raise
    watcher.end()
