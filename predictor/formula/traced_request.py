"""Traces the formula that another process asked for on the standard input (:mod:`predictor.formula.interpreter`).

The answer is one line of JSON on the standard output. What libraries print goes to the standard error.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from typing import Any

from predictor.common.errors import InputError
from predictor.events.regimes import NotOneRegime
from predictor.formula import tracing
from predictor.formula.formula import to_bytes


def trace(request: bytes) -> dict[str, Any]:
    """The formula's file, or the error that tracing raised, as JSON data."""
    config, key = pickle.loads(request)  # from the process that started this one, with the same code
    try:
        return {"formula": base64.b64encode(to_bytes(tracing.trace_formula(config, key))).decode()}
    except InputError as error:
        return {"input_error": str(error)}
    except NotOneRegime as error:
        return {"not_one_regime": str(error), "failed": error.__cause__ is not None}


def main() -> None:
    """Answers one request."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    replies.write(json.dumps(trace(sys.stdin.buffer.read())))
    replies.close()


if __name__ == "__main__":
    main()
