"""Check that configuration files fit a GPU, and say what changed since another revision: for CI and commits."""

from __future__ import annotations

import argparse
import copy
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from predictor.commands import file_kinds, options, output
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name, quoted
from predictor.workload import code_names
from predictor.workload.keys import KEYS

if TYPE_CHECKING:
    from rich.console import Console

    from predictor.answer.fit import Fit
    from predictor.workload.workload import Workload

EXAMPLES = """examples:
  peakcast fits job.yaml --gpu a100-40gb
  peakcast fits configs/*.yaml --gpu a100-80gb --data-parallel-size 8 --base origin/main
  peakcast fits train.sh --gpu h100-80gb --base main --markdown comment.md

Each FILE is a workload (as for predict --workload) or a framework's own configuration (as for predict --from). Options
apply to every file. With --base the same file of that Git revision is predicted too, with the files that it names, and
each line says what changed. Files are read, not executed: a model in Python (train.py:Model) that one names is refused.

In GitHub Actions, .github/actions/fits runs this and comments on the pull request; .pre-commit-hooks.yaml has a hook.

exit codes: 0 every file fits, 1 one does not fit or may not, 2 bad input, or a file that is not predicted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the files, the revision, the keys of a workload and the options of the output."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a workload, or a framework's own configuration")
    parser.add_argument("--from-format", metavar="NAME", help="format of files of a framework that do not show it")
    parser.add_argument("--base", metavar="REVISION", help="compare with the same files of this Git revision")
    output.add_output(parser)
    parser.add_argument("--markdown", metavar="FILE", help="also write a table in Markdown, for a comment")
    options.add_keys(parser)


def run(arguments: argparse.Namespace) -> int:
    """Judges every file and reports. The exit code is that of the worst."""
    for path in (arguments.output, arguments.markdown):
        output.check_path(path, arguments.force)
    output.check_different(arguments.markdown, arguments.output, "--markdown and -o")
    rows = [_judged(configuration, arguments) for configuration in _configurations(arguments)]
    from predictor.report import fits

    def report(console: Console) -> None:
        for row in rows:
            console.print(fits.line(row, arguments.base or ""), soft_wrap=True)

    if arguments.markdown:
        output.write_file(arguments.markdown, fits.markdown(rows, arguments.base or ""))
    output.write(arguments, lambda: [row.to_json() for row in rows], report)
    return 2 if any(row.problem for row in rows) else 1 if any(row.verdict != "fits" for row in rows) else 0


@dataclass(frozen=True)
class Configuration:
    """A file with its workload, or the reason why it has none, and the same of its earlier state if it has one."""

    file: str
    now: Workload | InputError
    before_file: str = ""
    before: Workload | InputError | None = None


def _configurations(arguments: argparse.Namespace) -> list[Configuration]:
    names: dict[str, str] = {}
    earlier: dict[str, Workload | InputError] = {}
    if arguments.base is not None:
        from predictor.common import git

        names = git.names_in_revision(arguments.base, arguments.files)
        with git.in_revision(arguments.base, options.CONFIGURATIONS):
            earlier = {file: _read(name, arguments) for file, name in names.items() if os.path.isfile(name)}
    return [Configuration(file, _read(file, arguments), names.get(file, file), earlier.get(file))
            for file in arguments.files]


def _read(file: str, arguments: argparse.Namespace) -> Workload | InputError:
    """The workload that a file and the options describe, or what is wrong."""
    one = copy.copy(arguments)
    one.model, one.workload, one.from_file = None, None, None
    try:
        if file_kinds.is_workload(file, one.from_format):
            one.workload, one.from_format = file, None
        else:
            one.from_file = file
        _check_model(options.given(one))
        workload = options.workload(one)
        if code_names.is_code_name(workload.model):
            raise InputError(f"{file_name(file)}: the model {quoted(workload.model)} is code, which fits does not run, "
                             "as others may have written it: give a config.json, or use peakcast predict")
        return workload
    except InputError as error:
        source = getattr(one, "source", None)
        return InputError(source.told(str(error)) if source else str(error))


def _check_model(given: options.Given) -> None:
    """Says what to do about a file without a model; a framework's own configuration has its own word for it.

    Raises:
        InputError: the file cannot name a model, or is a workload without one.
    """
    if "model" in given.values:
        return
    if given.source is None:
        raise InputError("names no model: add one, such as model: llava-1.5-7b")
    if given.source.format == "deepspeed":
        raise InputError("this is a DeepSpeed config, which does not say what is trained: give the file of the "
                         "training that names it, such as a workload with the key deepspeed")


def _judged(configuration: Configuration, arguments: argparse.Namespace) -> Fit:
    from predictor.answer import fit

    file, now = configuration.file, configuration.now
    if isinstance(now, InputError):
        return fit.Fit(file=file, problem=_without(file, now))
    if now.capacity is None:
        return fit.Fit(file=file, problem="names no GPU: add --gpu, such as --gpu a100-40gb")
    renamed = configuration.before_file if os.path.abspath(configuration.before_file) != os.path.abspath(file) else ""
    try:
        return fit.fit(file, now, configuration.before, output.progress, compared=arguments.base is not None,
                       before_file=renamed, by_options=options.parsed(arguments, KEYS.keys() - {"model"}))
    except InputError as error:
        return fit.Fit(file=file, problem=_without(file, error))


def _without(file: str, error: InputError) -> str:
    """The message without the file's name, which stands before it anyway."""
    return str(error).removeprefix(f"{file_name(file)}: ")
