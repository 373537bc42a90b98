"""Traces a formula that another process asked for (:mod:`predictor.formula.interpreter`)."""

from __future__ import annotations

import base64
import pickle
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
