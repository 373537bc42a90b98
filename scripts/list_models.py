#!/usr/bin/env python3
"""Write predictor/answer/model_facts.json: parameters by module and tokens per image of every known name.

    pip install -e '.[trace]'
    python scripts/list_models.py

Each model is built on the meta device and asked; a minute for all. Run it when a name is added.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from predictor.answer import model_list
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.json_dataclasses import to_plain
from predictor.model import models, parser

TARGET = Path(model_list.__file__).parent / model_list.TABLE


def figures() -> dict[str, model_list.Known]:
    """Of every known name that can be built."""
    found = {}
    for name in models.known_names():
        config = models.find(name)
        try:
            with model_list.building(config):
                found[name] = model_list.built(config, parser.bare(config, "sdpa"))
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)
    return found


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(to_plain(one))}" for name, one in figures().items()]
    write_whole(str(TARGET), ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    print(f"{TARGET}: {len(lines)} models")
