"""Runs in another environment's interpreter: ``PATH interpreter_start.py versions|trace``.

Only peakcast's own packages come from peakcast's directory; torch, transformers and all others are those of the
interpreter. The answer is one line of JSON on the standard output; what libraries print goes to the standard error.
"""

import contextlib
import json
import os
import sys
from importlib import metadata
from importlib.machinery import PathFinder

OWN = ("predictor", "profiles")
PACKAGES = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes")
OLDEST_PYTHON = (3, 10)


class OwnPackages:
    """Finds peakcast's packages, and no others, in the directory that holds them."""

    def __init__(self, directory):
        self.directory = directory

    def find_spec(self, name, path=None, target=None):
        """The package, if it is peakcast's own; None leaves the search to the interpreter."""
        return PathFinder.find_spec(name, [self.directory]) if name in OWN else None


def versions():
    """The releases that are installed here, and Python's."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name).split("+")[0]
    return found


def answer(task):
    """The answer to a task, as JSON data."""
    if task == "versions":
        return versions()
    from predictor.formula.traced_request import trace

    return trace(sys.stdin.buffer.read())


def main():
    """Answers the task that the command line names."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.meta_path.insert(0, OwnPackages(os.path.dirname(os.path.dirname(here))))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    replies.write(json.dumps(answer(sys.argv[1])))
    replies.close()


if __name__ == "__main__":
    main()
