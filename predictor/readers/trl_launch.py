"""Splits the arguments of ``trl sft`` into its own and those of ``accelerate launch``, which it starts.

Sources: TRL 1.16, cli/commands/training.py, cli/accelerate_config.py and scripts/utils.py (``TrlParser``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted
from predictor.readers import accelerate, launchers, trl
from predictor.readers.user_input import UserInput

PROGRAM = "trl sft"
CONFIG, ENVIRONMENT = "accelerate_config", "env"


@lru_cache(maxsize=1)
def configs() -> Mapping[str, Mapping[str, Any]]:
    """TRL's own configurations of accelerate by their names (trl/accelerate_configs)."""
    return json.loads((resources.files(__package__) / "trl_accelerate.json").read_text("utf-8"))


@lru_cache(maxsize=1)
def _options() -> frozenset[str]:
    known = launchers.table()["accelerate"]
    words = " ".join([*known["with_value"], *known["without"]]).split()
    names = {name.lstrip("-").replace("-", "_") for word in words for name in word.split("|") if name.startswith("--")}
    form = trl.FORMAT
    return frozenset(names | {CONFIG}) - form.fields.keys() - form.renamed.keys() - form.without_effect


def launched(user_input: UserInput) -> UserInput:
    """The same input without the launcher's arguments; its ``launch`` and number of processes come from them.

    Raises:
        InputError: accelerate would reject the arguments, or ``env`` is no mapping.
    """
    values = dict(user_input.values)
    variables = values.pop(ENVIRONMENT, None) if user_input.started_in else None
    if variables is not None and not isinstance(variables, Mapping):
        raise InputError(f"{user_input.name}: {ENVIRONMENT} is {quoted(variables)}: a mapping of variables is needed")
    environment = {**user_input.environment, **{str(key): str(item) for key, item in (variables or {}).items()}}
    user_input = replace(user_input, values=values, environment=environment)
    given = {name: name.replace("-", "_") for name in values if name.replace("-", "_") in _options()}
    if user_input.program != PROGRAM or not given:
        return user_input
    options = {key: "" if values[name] is True else str(values.pop(name)) for name, key in given.items()}
    if CONFIG in options:
        options["config_file"] = options.pop(CONFIG)
    if "num_processes" in options and not (user_input.flags or "num_processes" in user_input.besides):
        options[launchers.BY] = f"{user_input.name}: num_processes"
    name = user_input.starts
    launch = accelerate.launch(options, name, user_input.path, configs())
    world_size, by = launchers.started("accelerate", PROGRAM, options, environment, name, user_input.path,
                                       user_input.unknown)
    own = {key: item for key, item in values.items() if key not in given}
    return replace(user_input, values=own, launch=launch, world_size=world_size, launched_by=by)
