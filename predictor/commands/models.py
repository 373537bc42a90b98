"""List the models that are known by name, or show one: modules, layers, tokens per image, memory."""

from __future__ import annotations

import argparse

from predictor.commands import options, output
from predictor.common.errors import InputError

EXAMPLES = """examples:
  peakcast models
  peakcast models llava-1.5-7b
  peakcast models qwen2.5-vl-7b --recipe lora --image-size 768x1024 --sequence-length 2048
  peakcast models path/to/config.json --no-step --json

Without MODEL: every known name with its parameters, by module, and what an image of it becomes; needs no
torch. With one, the model is built on PyTorch's meta device (pip install 'peakcast[trace]'), which takes no
memory for its weights. The options of a workload are those of peakcast predict; what a training step needs
and was not given is chosen, and named.

exit codes: 0 all is well, 2 bad input, or a model that cannot be built
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the workload's options and the output's."""
    options.add_workload(parser)
    output.add_output(parser)
    parser.add_argument("--no-step", action="store_true", help="do not predict a training step of the model")


def run(arguments: argparse.Namespace) -> int:
    """Lists or shows."""
    output.check_path(arguments.output, arguments.force)
    if arguments.model is None and arguments.workload is None:
        _listed(arguments)
        return 0
    workload = options.workload(arguments)
    from predictor.answer import model_page

    page = model_page.page(workload, step=not arguments.no_step, progress=output.progress)

    def document() -> dict:
        from predictor.report.models import document

        return document(page)

    def report(console) -> None:
        from predictor.report.models import report

        report(console, page)

    output.write(arguments, document, report)
    return 0


def _listed(arguments: argparse.Namespace) -> None:
    """The list.

    Raises:
        InputError: options of a workload, but no model.
    """
    given = [name for name in options.KEYS if getattr(arguments, name) is not None]
    if given:
        raise InputError(f"--{given[0].replace('_', '-')}: the list of models takes no options of a workload: name "
                         "a MODEL, or leave it out")
    from predictor.answer import model_list
    from predictor.common.json_dataclasses import to_plain

    known = model_list.listed()

    def report(console) -> None:
        from predictor.report.models import overview

        overview(console, known)

    output.write(arguments, lambda: {name: to_plain(one) for name, one in known.items()}, report)
