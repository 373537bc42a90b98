"""The process of the ``peakcast`` command: it ends quietly when it is interrupted, from its first line on.

Until the command line is imported there is nothing to clean up, and an interrupt ends the process at once. The
interpreter's own start ends with a traceback if it is interrupted; nothing here can change that. Therefore nothing is
imported before the handler is installed, except what every interpreter has imported by then.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the module signal also imports enum, which takes as long as the rest of the start
import os

INTERRUPTED = 128 + 2
AGAIN_SECONDS = 0.05
"""An interrupt that was lost is raised again after this time."""
OBJECTS = 50_000
"""Number of new objects after which Python looks for garbage. Hardly any objects of a prediction refer to each other in
circles: with Python's own number, 700 in 3.11, looking takes a tenth of the time of a plan."""


def _end(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else the shell has it ignored
    _signal.signal(_signal.SIGINT, _end)


def main() -> int:
    """Runs the command of this process's arguments, and returns its exit code."""
    import gc

    from predictor import cli

    gc.set_threshold(OBJECTS)
    _deliver_lost_interrupts()
    try:
        if _signal.getsignal(_signal.SIGINT) is _end:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _end)  # the interpreter's end has no traceback either


def _deliver_lost_interrupts() -> None:
    """Raises an interrupt again if it was lost where Python drops exceptions, such as in ``__del__`` during imports."""
    import _thread
    import sys
    import time

    before, main_thread = sys.unraisablehook, _thread.get_ident()

    def again() -> None:
        time.sleep(AGAIN_SECONDS)  # until the caller, which drops exceptions, has returned
        if hasattr(_signal, "pthread_kill"):
            _signal.pthread_kill(main_thread, _signal.SIGINT)  # ends a wait of the main thread, too
        else:
            _thread.interrupt_main()

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(again, ())
        else:
            before(lost)

    sys.unraisablehook = hook


if __name__ == "__main__":
    raise SystemExit(main())
