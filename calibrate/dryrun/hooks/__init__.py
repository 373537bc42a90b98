"""Hooks of a dry run inside the user's process: a watcher of its memory, and stand-ins for the other ranks.

``import torch`` calls :func:`start` through an entry point (``autoload/``). The entry point is only on the path of
processes that ``calibrate.dryrun.dryrun`` starts. The script stays unchanged.
"""

from __future__ import annotations

import json
import os

SETTING = "PEAKCAST_DRYRUN"
"""Environment variable with the JSON of :class:`calibrate.dryrun.dryrun.Settings`; set only in processes of a dry run.
"""

_started = False


def start() -> None:
    """Watch this process from now on. Does nothing without the setting, on a real GPU, or when called again."""
    global _started
    from calibrate.emulator import is_emulated

    if _started or SETTING not in os.environ or not is_emulated():
        return
    _started = True
    settings = json.loads(os.environ[SETTING])
    from calibrate.dryrun.hooks import fake_ranks, launchers, progress, random_weights, watcher
    from calibrate.dryrun.progress import Phase

    written = progress.Progress(settings["directory"] if settings["progress"] else None, settings["optimizer_steps"])
    written.write(Phase.IMPORTED)
    random_weights.start()
    if settings["world_size"] is not None:
        launchers.start_one_process()
        fake_ranks.pretend(settings["rank"], settings["world_size"])
    watcher.start(settings["directory"], settings["optimizer_steps"], history=settings["history"], progress=written)
