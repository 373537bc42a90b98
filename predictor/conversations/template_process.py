"""The process that renders chat templates for :mod:`predictor.conversations.templates`.

A template is a program: it may loop for ever, or make a text that no memory holds. So the process has a limit on its
addresses where the system knows one, and whoever asks ends it when it takes too long. Requests and answers are lines of
JSON: ``[template, messages, variables]``, and ``{"text": …}``, ``{"characters": …}`` or ``{"error": …}``.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from typing import IO, Any

MOST_BYTES = 256 << 20
"""Addresses that a template may take, beside those of the modules that are imported here."""


def main() -> None:
    """Answers requests until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for the process that asks
    longest = int(sys.argv[-1])
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    sys.modules["torch"] = None  # type: ignore[assignment]  # rendering needs none of it, and it takes seconds
    from transformers.utils.chat_template_utils import render_jinja_template

    _bound_memory()
    _say(answers, {})
    for line in sys.stdin:
        template, messages, variables = json.loads(line)
        try:
            found = render_jinja_template([messages], chat_template=template, add_generation_prompt=False, **variables)
            text = found[0][0]
            answer: dict[str, Any] = {"text": text} if len(text) <= longest else {"characters": len(text)}
        except Exception as error:  # templates raise what they like
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        _say(answers, answer)


def _say(stream: IO[str], answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _bound_memory() -> None:
    """Bounds the addresses of this process (Linux; other systems do not tell how many it has)."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as stream:
            most = int(stream.read().split()[0]) * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
