"""Names of models that the user's own Python code builds: ``module:function``, or ``path/to/file.py:function``."""

from __future__ import annotations

import os
import re

CODE_NAME = re.compile(r"(?P<where>[^:]+(?:\.py)?):(?P<function>[A-Za-z_]\w*)")


NOT_RUN = "is code, which is not run because a record names it"
"""Says of a model why a record of somebody else's is not predicted."""


def is_code_name(model: str) -> bool:
    """True if the text names a function, and not an existing file or directory."""
    return bool(CODE_NAME.fullmatch(model)) and not os.path.exists(model)
