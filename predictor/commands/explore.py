"""Explore a model in the browser: one page, offline, that predicts again as sliders move.

Controls for batch, sequence, images, GPUs, engine and GPU; what the peak is made of, the run over three steps, and a
map of what fits redraw at once. Bytes and verdicts are those of peakcast predict.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence

from predictor.commands import options, output
from predictor.common.errors import InputError
from predictor.common.value_types import thaw
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload

EXAMPLES = """examples:
  peakcast explore llava-1.5-7b -o page.html
  peakcast explore llava-1.5-13b --recipe pretrain --zero-stage 2 --data-parallel-size 8 \\
      --gpu a100-40gb -o page.html
  peakcast explore --workload job.yaml --degrees 1,8,16 -o page.html --json
  peakcast explore --from finetune.sh --gpu a100-80gb -o page.html

The workload's shape, engine and GPU are what the page starts with. Half a minute on idle cores for the
usual engines and degrees, minutes on busy ones or for a model that must be traced first.
exit codes: 0 written, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the workload's options, where the page goes, and its degrees."""
    options.add_workload(parser)
    options.add_from(parser)
    group = parser.add_argument_group("page")
    group.add_argument("-o", "--output", metavar="FILE.html", help="where the page goes")
    group.add_argument("--force", action="store_true", help="overwrite a file that exists")
    group.add_argument("--json", action="store_true", help="say in JSON what was written")
    group.add_argument("--degrees", metavar="N,N,…", help="data-parallel sizes to choose from; default: 1,2,4,8 and "
                       "the workload's")


def run(arguments: argparse.Namespace) -> int:
    """Composes and writes the page."""
    if not arguments.output:
        raise InputError("explore writes a page: give -o FILE.html")
    output.check_path(arguments.output, arguments.force)
    workload = options.workload(arguments)
    if workload.mode != "training":
        raise InputError(f"mode is {workload.mode}, but a page is of training: leave it out, or use peakcast predict")
    from predictor.explore import content, page, settings

    degrees = _degrees(arguments.degrees) if arguments.degrees is not None else settings.DEGREES
    found = settings.find(workload, degrees, output.progress)
    made = content.content(found, _words(arguments, workload, settings.PAGES_OWN), _composing, _trains(arguments))
    text = page.page(made)
    output.write_file(arguments.output, text)
    written = {"path": arguments.output, "bytes": len(text.encode()), "model": workload.model,
               "engines": {engine["name"]: engine["degrees"] for engine in made.document["engines"]},
               "gpus": list(found.gpus), "formulas": len(made.document["formulas"]),
               "runs": sum(len(formula["runs"]) for formula in made.document["formulas"]),
               "left_out": found.left_out}

    def report(console) -> None:
        engines = ", ".join(engine["label"] for engine in made.document["engines"])
        console.print(f"{written['path']}: {written['bytes'] / 1024:,.0f} KiB, {engines}; {len(found.gpus)} GPUs. "
                      "Open it in a browser; it needs no network.", soft_wrap=True)
        for what, why in found.left_out.items():
            console.print(f"Left out: {what}: {why}", soft_wrap=True)

    arguments.output = None  # what was written is told on stdout
    output.write(arguments, lambda: written, report)
    return 0


def _degrees(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part[:5]) <= 1024 for part in parts):
        raise InputError(f'--degrees must be whole numbers from 1 to 1024 with commas between, not "{text[:40]}"')
    return tuple(map(int, parts))


def _trains(arguments: argparse.Namespace) -> list[str]:
    """What stands behind all options."""
    return ["--", *map(shlex.quote, arguments.command)] if arguments.command else []


def _words(arguments: argparse.Namespace, workload: Workload, controlled: Sequence[str]) -> list[str]:
    """The workload as words of a command line, without what the page's controls say."""
    words = [arguments.model] if arguments.model else []
    for name, file in (("workload", arguments.workload), ("from", arguments.from_file),
                       ("from-format", arguments.from_format)):
        words += [f"--{name}", file] if file else []
    for name in ("deepspeed", "ddp") if workload.source else ():  # the engine that a control says stands for all read
        if getattr(arguments, name) is None and name not in workload.filled_in:
            words += [f"--{name}", json.dumps(thaw(getattr(workload, name)))]
    for name in KEYS:
        given, option = getattr(arguments, name), "--" + name.replace("_", "-")
        if name in (*controlled, "model") or given is None:
            continue
        if isinstance(given, bool):
            words.append(option if given else option.replace("--", "--no-", 1))
        else:
            for value in given if isinstance(given, list) else [given]:
                words += [option, str(value)]
    return [shlex.quote(word) for word in words]


def _composing(rows: Sequence):
    """A bar over the runs, where a terminal shows it."""
    if not sys.stderr.isatty():
        return rows
    from rich.console import Console
    from rich.progress import track

    return track(rows, description="Composing runs", console=Console(stderr=True), transient=True)
