"""Explore a model in the browser: one offline page that predicts again as sliders move.

The page has controls for batch, sequence, images, GPUs, engine and GPU type. It redraws the factors of the peak,
allocated and reserved bytes over three steps, and a map of what fits, and judges what else would fit. Its address holds
the setting, to be copied and shared. Bytes and verdicts are those of peakcast predict.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from predictor.commands import options, output
from predictor.common import numbers
from predictor.common.errors import InputError
from predictor.common.value_types import thaw
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """examples:
  peakcast explore llava-1.5-7b -o page.html
  peakcast explore llava-1.5-13b --recipe pretrain --zero-stage 2 --data-parallel-size 8 \\
      --gpu a100-40gb -o page.html
  peakcast explore --workload job.yaml --degrees 1,8,16 -o page.html --json
  peakcast explore --from finetune.sh --gpu a100-80gb -o page.html

The page starts with the workload's shape, engine and GPU; an address such as page.html#batch=16&engine=zero2&degree=8
starts it elsewhere. ZeRO-3, FSDP2 and tensor parallelism are in it where their formulas are shipped (llava-1.5-7b,
recipe finetune), or if the workload has them. Writing it takes a minute on idle cores for the usual engines and
degrees, and minutes on busy cores or for a model that must be traced first.
exit codes: 0 written, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the workload and of the page."""
    options.add_workload(parser)
    options.add_from(parser)
    group = parser.add_argument_group("page")
    group.add_argument("-o", "--output", metavar="FILE.html", help="where the page goes")
    group.add_argument("--force", action="store_true", help="overwrite a file that exists")
    group.add_argument("--json", action="store_true", help="print a summary of the written page as JSON")
    group.add_argument("--degrees", metavar="N,N,…", help="data-parallel sizes to choose from; default: 1,2,4,8 and "
                       "the workload's")


def run(arguments: argparse.Namespace) -> int:
    """Computes and writes the page."""
    if not arguments.output:
        raise InputError("explore writes a page: give -o FILE.html")
    output.check_path(arguments.output, arguments.force)
    workload = options.workload(arguments)
    if workload.mode != "training":
        raise InputError(f"mode is {workload.mode}, but a page is for training only: leave it out, or use peakcast "
                         "predict")
    from predictor.explore import content, page, settings

    degrees = _degrees(arguments.degrees) if arguments.degrees is not None else settings.DEGREES
    told = output.Told()
    choices = settings.find(workload, degrees, told.tracing)
    made = content.content(choices, _words(arguments, workload, settings.PAGES_OWN), partial(_composing, told),
                           _trains(arguments))
    text = page.page(made)
    output.write_file(arguments.output, text)
    written = {"path": arguments.output, "bytes": len(text.encode()), "model": workload.model,
               "engines": {engine["name"]: engine["degrees"] for engine in made.document["engines"]},
               "gpus": list(choices.gpus), "formulas": len(made.document["formulas"]),
               "runs": sum(len(formula["runs"]) for formula in made.document["formulas"]),
               "left_out": choices.left_out}

    def report(console: Console) -> None:
        from predictor.report.layout import print_wrapped

        engines = ", ".join(engine["label"] for engine in made.document["engines"])
        print_wrapped(console, f"{written['path']}: {written['bytes'] / 1024:,.0f} KiB, {engines}; "
                               f"{len(choices.gpus)} GPUs. Open it in a browser; it needs no network.",
                      *filter(None, [made.document["assumed"]]),
                      *(f"Left out: {reason}" for reason in made.document["left_out"]))

    arguments.output = None  # -o named the page; the summary goes to stdout
    output.write(arguments, lambda: written, report)
    return 0


def _degrees(text: str) -> tuple[int, ...]:
    degrees = tuple(numbers.whole(part) or 0 for part in text.split(","))
    if not all(1 <= degree <= 1024 for degree in degrees):
        raise InputError(f'--degrees must be whole numbers from 1 to 1024 with commas between, not "{text[:40]}"')
    return degrees


def _trains(arguments: argparse.Namespace) -> list[str]:
    """The words of a training command after ``--``, which follow all options."""
    return ["--", *map(shlex.quote, arguments.command)] if arguments.command else []


def _words(arguments: argparse.Namespace, workload: Workload, controlled: Sequence[str]) -> list[str]:
    """The workload as quoted words of a command line, without the keys that the page's controls set."""
    words = [arguments.model] if arguments.model else []
    for name, file in (("workload", arguments.workload), ("from", arguments.from_file),
                       ("from-format", arguments.from_format)):
        words += [f"--{name}", file] if file else []
    for name in ("deepspeed", "ddp") if workload.source else ():  # the page's engine option overrides what was read
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


def _composing(told: output.Told, rows: Sequence[Any]) -> Iterable[Any]:
    """The runs, with a progress bar if stderr is a terminal, else with lines."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(rows, description="Composing runs", console=Console(stderr=True), transient=True)
        return
    for number, row in enumerate(rows, start=1):
        told(partial("composing the page: run {} of {}".format, number, len(rows)))
        yield row
