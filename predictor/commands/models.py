"""List the models that are known by name, or show one: modules, layers, tokens per image, memory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from predictor.commands import options, output
from predictor.common.errors import InputError
from predictor.workload.keys import KEYS

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """examples:
  peakcast models
  peakcast models --details
  peakcast models llava-1.5-7b
  peakcast models qwen2.5-vl-7b --recipe lora --image-size 768x1024 --sequence-length 2048
  peakcast models path/to/config.json --no-step --json

Without MODEL, the command lists every known name with its parameters; --details adds its architecture, parameters by
module and tokens per image. This needs no torch. With MODEL, it builds the model on PyTorch's meta device (needs
peakcast[trace]), which takes no memory for weights, and predicts a training step. The options of a workload are those
of peakcast predict; the command chooses values for needed options that are left out, and names them. The answer has at
most 40 lines of 100 columns; --details prints all.

exit codes: 0 all is well, 2 bad input, or a model that cannot be built
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the workload and of the output."""
    options.add_workload(parser)
    output.add_output(parser)
    output.add_details(parser, "of the list, architectures, parameters by module and tokens of a picture; of a model, "
                       "all layers, the largest weights and notes")
    parser.add_argument("--no-step", action="store_true", help="do not predict a training step of the model")


def run(arguments: argparse.Namespace) -> int:
    """Lists the known models, or shows one."""
    output.check_path(arguments.output, arguments.force)
    if arguments.model is None and arguments.workload is None:
        _listed(arguments)
        return 0
    workload = options.workload(arguments)
    from predictor.answer import model_page

    page = model_page.page(workload, step=not arguments.no_step, progress=output.progress)

    def document() -> dict[str, Any]:
        from predictor.report.models import document

        return document(page)

    def report(console: Console) -> None:
        from predictor.report import models, models_summary

        (models if arguments.details else models_summary).report(console, page)

    output.write(arguments, document, report)
    return 0


def _listed(arguments: argparse.Namespace) -> None:
    """Lists the known models.

    Raises:
        InputError: options of a workload are given, but no model.
    """
    given = [name for name in KEYS if getattr(arguments, name) is not None]
    if given:
        raise InputError(f"--{given[0].replace('_', '-')}: the list of models takes no options of a workload: name "
                         "a MODEL, or leave it out")
    from predictor.answer import model_list
    from predictor.common.json_dataclasses import to_plain

    known = model_list.listed()

    def report(console: Console) -> None:
        from predictor.report import models, models_summary

        (models if arguments.details else models_summary).overview(console, known)

    output.write(arguments, lambda: {name: to_plain(model) for name, model in known.items()}, report)
