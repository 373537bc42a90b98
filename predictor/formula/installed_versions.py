"""Prints the versions of an environment as one line of JSON. Run by path, in any Python 3 (``interpreter.find``)."""

import contextlib
import json
import sys
from functools import lru_cache
from importlib import metadata

PACKAGES = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes")


def versions():
    """The releases that are installed here, and Python's."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    found.update((name, _release(name)) for name in PACKAGES if _release(name))  # Python 3.8 adds no dictionaries
    return found


@lru_cache
def _release(package):
    """The installed release of a package; empty if it is not installed. Reading it takes a millisecond."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package).split("+")[0]
    return ""


if __name__ == "__main__":
    print(json.dumps(versions()))
