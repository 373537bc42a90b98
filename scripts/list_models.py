#!/usr/bin/env python3
"""Write predictor/answer/model_facts.json: parameters by module and tokens per image of every known name.

    pip install -e '.[trace]'
    python scripts/list_models.py

Each model is built on the meta device; all of them take a minute. Run this when you add a name.
"""

from __future__ import annotations

import argparse
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
    """The facts of every known model that can be built."""
    facts = {}
    for name in models.known_names():
        config = models.find(name)
        try:
            with model_list.building(config):
                facts[name] = model_list.built(config, parser.build_plain(config, "sdpa"))
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)
    return facts


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    lines = [f"{json.dumps(name)}: {json.dumps(to_plain(known))}" for name, known in figures().items()]
    write_whole(str(TARGET), ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    print(f"{TARGET}: {len(lines)} models")
