"""A process that makes and judges a batch of inputs of one format, and prints what it found as one line of JSON.

    python -m tests.attack.worker FORMAT DIRECTORY SEED INPUTS [--branches FILE] [--until-first]
    python -m tests.attack.worker --current DIRECTORY

Before an input is judged it is written to ``current.json`` in the directory, so that one that ends the process is
known. ``--branches`` names a file for the branches that were reached, as coverage.py keeps them; ``--until-first`` ends
the batch at its first finding. An input after which this process holds too much memory is judged once more, by the second
command in a process of its own, because earlier inputs leave some behind.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

MOST_ADDRESSES = 8 << 30
"""Limit on the worker's addresses, so that a finding does not take the machine's memory."""
CURRENT = "current.json"
DIGEST_BYTES = 5
"""Of an input: among a million, one pair is alike by chance at most."""
MOST_FINDINGS = 20
"""Findings of a batch that are kept; all are counted."""


class Enough(BaseException):
    """Ends a batch at its first finding."""


def batch(grammar: str, seed: int, inputs: int, directory: Path, until_first: bool = False) -> dict[str, Any]:
    """Judges inputs, which a format and a seed decide, each once, and counts what became of them.

    ``digests`` are those of all that were judged, so that inputs of several batches are counted once, too.
    """
    from tests.attack import programs
    from tests.attack.formats import each
    from tests.attack.inputs import Input
    from tests.attack.judge import MEMORY, Judgement, judge
    from tests.attack.targets import TOKENIZED, imported, nothing_traced

    tokenized = grammar in TOKENIZED
    if tokenized:
        imported()
    seen: dict[bytes, None] = {}
    done: dict[str, Any] = {"inputs": 0, "refused": 0, "untraced": 0, "seconds": 0.0, "clock_seconds": 0.0, "bytes": 0, "problems": 0, "findings": []}
    inside = directory / "inside"
    inside.mkdir(exist_ok=True)

    def judged(given: Input) -> None:
        text = json.dumps(given.to_json())
        digest = hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
        if digest in seen:
            return
        seen[digest] = None
        (directory / CURRENT).write_text(text)
        found = judge(given, inside, tokenized)
        if not tokenized and found.problem and found.problem.startswith(MEMORY):
            found = Judgement(**programs.answer("worker", "--current", directory))
        done["inputs"] += 1
        done["refused"] += found.refused
        done["untraced"] += found.untraced
        for name, much in (("seconds", found.seconds), ("clock_seconds", found.clock_seconds), ("bytes", found.peak_bytes)):
            done[name] = max(done[name], much)
        if found.problem:
            done["problems"] += 1
            if len(done["findings"]) < MOST_FINDINGS:
                done["findings"].append({"problem": found.problem, "input": given.to_json()})
            if until_first:
                raise Enough

    with nothing_traced(tokenized), contextlib.suppress(Enough):
        each(grammar, seed, inputs, judged)
    return done | {name: round(done[name], 2) for name in ("seconds", "clock_seconds")} | {"digests": base64.b64encode(b"".join(seen)).decode()}


def alone(directory: Path) -> dict[str, Any]:
    """The judgement of the input in the directory's ``current.json``, of which this process has judged no other."""
    from tests.attack.inputs import Input
    from tests.attack.judge import judge
    from tests.attack.targets import nothing_traced

    inside = directory / "inside"
    with nothing_traced(False):
        return asdict(judge(Input.from_json(json.loads((directory / CURRENT).read_text())), inside))


def main(words: list[str]) -> None:
    if words[0] == "--current":
        print(json.dumps(alone(Path(words[1]))))
        return
    parser = argparse.ArgumentParser()
    for name in ("grammar", "directory", "--branches"):
        parser.add_argument(name)
    for name in ("seed", "inputs"):
        parser.add_argument(name, type=int)
    parser.add_argument("--until-first", action="store_true")
    given = parser.parse_args(words)
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PEAKCAST_CACHE": f"{given.directory}/cache"}
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    start = time.perf_counter()
    with _branches(given.branches):
        found = batch(given.grammar, given.seed, given.inputs, Path(given.directory), given.until_first)
    print(json.dumps(found | {"wall_seconds": round(time.perf_counter() - start, 1)}))


def _branches(path: str | None) -> contextlib.AbstractContextManager[None]:
    if path is None:
        return contextlib.nullcontext()
    from tests.attack.branches import recorded_to

    return recorded_to(Path(path))


if __name__ == "__main__":
    main(sys.argv[1:])
