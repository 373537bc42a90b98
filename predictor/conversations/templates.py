"""Chat templates, rendered in a process of its own within bounds of time and memory."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import IO, Any

from predictor.common import start

STARTING_SECONDS = 120
"""Time for the process to import transformers."""
SECONDS = 2.0
"""Time for the text of one conversation. Templates of models take milliseconds."""


class Refused(Exception):
    """A template cannot be rendered. The message says why."""


class Renderer:
    """Renders chat templates as transformers does (5.17, utils/chat_template_utils.py, render_jinja_template).

    The process starts with the first conversation, and again after one that was ended.
    """

    def __init__(self, longest: int) -> None:
        """Args:
            longest: characters that a text may have.
        """
        self._longest = longest
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def render(self, template: Any, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """The text of a conversation.

        Raises:
            Refused: the template is wrong, refuses the conversation, or takes too much time or memory.
        """
        try:
            request = json.dumps([template, messages, variables])
        except (TypeError, ValueError) as error:
            raise Refused(f"its chat template has {error}") from None
        try:
            if self._process is None:
                self._process = _started(self._longest)
                _answer(self._process, "", STARTING_SECONDS)
            answer = _answer(self._process, request + "\n", SECONDS)
        except (OSError, ValueError):  # it has ended: no answer, or half of one
            self.close()
            raise Refused(f"its chat template takes more than {SECONDS:.0f} s or 256 MiB of memory") from None
        if "characters" in answer:
            raise Refused(f"its chat template makes a text of {answer['characters']:,} characters: must have at most "
                          f"{self._longest:,}")
        if "error" in answer:
            raise Refused(f"refuses it: {answer['error']}")
        return answer["text"]


@lru_cache(maxsize=1)
def shared(longest: int) -> Renderer:
    """The renderer of this process, which is closed at its end."""
    renderer = Renderer(longest)
    atexit.register(renderer.close)
    return renderer


def _started(longest: int) -> subprocess.Popen[str]:
    words = [sys.executable, start.__file__, "predictor.conversations.template_process", str(longest)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _answer(process: subprocess.Popen[str], request: str, seconds: float) -> dict[str, Any]:
    """The answer to a request. A process that does not answer in time is ended, which ends its pipes.

    Raises:
        OSError, ValueError: the process has ended.
    """
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        _pipe(process.stdin).write(request)
        _pipe(process.stdin).flush()
        return json.loads(_pipe(process.stdout).readline())
    finally:
        timer.cancel()
        timer.join()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # both streams of the process are pipes
    return pipe
