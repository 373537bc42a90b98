"""Print the JSON Schema of a workload file or of a result, for editors and checks."""

from __future__ import annotations

import argparse
import json

from predictor.commands import output

EXAMPLES = """examples:
  peakcast schema workload -o workload.schema.json
  peakcast schema result

With this first line of job.yaml, editors that speak to yaml-language-server (VS Code, Neovim, Zed and others) complete
its keys, show what they mean, and mark what is wrong:

  # yaml-language-server: $schema=workload.schema.json

The schema of a result describes what peakcast predict --json writes. Both are of draft 2020-12.

exit codes: 0 all is well, 2 bad input
"""
KINDS = ("workload", "result")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the kind of file and the options of the output."""
    parser.add_argument("of", metavar="|".join(KINDS), choices=KINDS,
                        help="a file for --workload, or the result of predict --json")
    output.add_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints one schema."""
    output.check_path(arguments.output, arguments.force)
    from predictor.answer import schemas

    schema = {"workload": schemas.workload, "result": schemas.result}[arguments.of]()
    output.emit(arguments.output, json.dumps(schema, indent=2, allow_nan=False) + "\n")
    return 0
