"""What a dry run puts into the user's process: a watcher of its memory, and the ranks that do not exist.

``import torch`` calls :func:`start` through an entry point (``autoload/``) that is only on the path
of processes that ``calibrate.dryrun.dryrun`` started. The script is not touched and need not know.
"""

from __future__ import annotations

import json
import os

SETTING = "PEAKCAST_DRYRUN"
"""JSON of :class:`calibrate.dryrun.dryrun.Settings`; present in no process that was not started for a dry run."""

_started = False


def start() -> None:
    """Watch this process from now on; nothing happens without the setting, off the emulated GPU, or twice."""
    global _started
    from calibrate.emulator import is_emulated

    if _started or SETTING not in os.environ or not is_emulated():
        return
    _started = True
    settings = json.loads(os.environ[SETTING])
    from calibrate.dryrun.hooks import fake_ranks, watcher

    if settings["world_size"] is not None:
        fake_ranks.pretend(settings["rank"], settings["world_size"])
    watcher.start(settings["directory"], settings["optimizer_steps"], history=settings["history"])
