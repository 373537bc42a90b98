"""Names of models that the user's own code makes: ``module:function``, or ``path/to/file.py:function``."""

from __future__ import annotations

import os
import re

NAMED = re.compile(r"(?P<where>[^:]+(?:\.py)?):(?P<function>[A-Za-z_]\w*)")


def is_named(model: str) -> bool:
    """Whether this names a function and not a file or directory."""
    return bool(NAMED.fullmatch(model)) and not os.path.exists(model)
