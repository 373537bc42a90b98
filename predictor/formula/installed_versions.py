"""Prints the versions of an environment as one line of JSON. Run by path, in any Python 3 (``interpreter.find``)."""

import contextlib
import json
import sys
from importlib import metadata

PACKAGES = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes")


def versions():
    """The releases that are installed here, and Python's."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name).split("+")[0]
    return found


if __name__ == "__main__":
    print(json.dumps(versions()))
