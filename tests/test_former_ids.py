"""The map from the test ids before the packages were made (commit c07c62f) to today's points to tests that exist."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAP = json.loads((Path(__file__).parent / "data" / "former_test_ids.json").read_text())


def test_every_file_of_the_map_is_there():
    assert [file for file in MAP["files"].values() if not (ROOT / file).is_file()] == []


def test_every_renamed_test_of_the_map_is_there():
    places = [test.split("::") for test in MAP["renamed"].values()]
    assert [name for file, name in places if f"def {name}(" not in (ROOT / file).read_text()] == []
