"""Learn a formula from jobs recorded at a few shapes: any engine, any optimizer, your own script."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from predictor.commands import options, output
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name, nearest, quoted
from predictor.model.request import Request

EXAMPLES = """examples:
  peakcast learn llava-1.5-7b --engine ddp --data-parallel-size 8 --rank 0 \\
      --per-device-train-batch-size 4 --sequence-length 2048 -o ddp.npz
  peakcast learn --gpu h100-80gb --batches 2,4 --sequences 128,256,512 -o mine.npz \\
      -- python train.py --batch {batch} --length {sequence}
  peakcast predict mine.npz --per-device-train-batch-size 16 --sequence-length 4096 --gpu h100-80gb

The job runs for three optimizer steps at each of a handful of shapes, in processes of its own, and every
allocation is recorded; their sizes become functions of batch, sequence and images. In a script's command
{batch}, {sequence} and {images} (per sample) stand for the values that vary; without them, the result is
a replay at one shape. After an interruption, the same command continues. The formula answers for other
shapes and GPU capacities; engine, ranks and optimizer are those of the recorded job.

exit codes: 0 learned, 1 learned, but a recorded peak is not reproduced to 1 %, 2 bad input or environment
"""

DEFAULT_SEQUENCE, DEFAULT_BATCH = 256, 4
EXACT = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the workload, the shapes, the device and the output. A script follows ``--``."""
    parser.usage = "peakcast learn MODEL [options] -o FILE | peakcast learn [options] -o FILE -- COMMAND [ARGUMENT ...]"
    options.add_workload(parser)
    group = parser.add_argument_group("where to learn")
    for symbol, meaning in (("batches", "samples per micro-batch"), ("sequences", "tokens per sample"),
                            ("images", "images per sample")):
        group.add_argument(f"--{symbol}", metavar="N,N,…", help=f"record at these {meaning}; one number: not varied")
    group.add_argument("--device", choices=("cuda", "emulated"),
                       help="default: cuda if this machine has a GPU; a script always runs on an emulated one")
    group.add_argument("--no-probe", action="store_true",
                       help="do not also record one sample, nor a sequence that is no multiple of 8")
    output.add_output(parser)
    original = parser.parse_known_args

    def parse(words):
        words = list(words)
        end = words.index("--") if "--" in words else None
        arguments, unknown = original(words[:end])
        arguments.command = None if end is None else words[end + 1:]
        return arguments, unknown

    parser.parse_known_args = parse  # type: ignore[method-assign, assignment]  # of this parser only, by design


def run(arguments: argparse.Namespace) -> int:
    """Records jobs, learns a formula, writes its file and reports. The exit code says whether the formula reproduces
    every record."""
    if not arguments.output or not arguments.output.endswith(".npz"):
        raise InputError("learn writes a formula: name a file that ends in .npz after -o (before --)")
    output.check_path(arguments.output, arguments.force)
    from calibrate.emulator.build import find_torch

    find_torch()  # the imports below need it
    source, plan = _script(arguments) if arguments.command is not None else _workload(arguments)
    from calibrate.learn import learn as learning
    from predictor.formula import learned

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # temporary files go away
    formula, checks = learning.learn(source, plan, _progress)
    learned.save(arguments.output, formula)
    learning.clear(source)
    from calibrate.report.learn import document, report

    path, arguments.output = arguments.output, None  # the report goes to the terminal
    output.write(arguments, lambda: document(path, formula, checks),
                 lambda console: report(console, path, formula, checks))
    exact = all(abs(error) <= EXACT * row.measured[name] for row in checks for name, error in row.error_bytes.items())
    return 0 if exact else 1


def _workload(arguments: argparse.Namespace):
    """The source and plan of a workload."""
    sizes = {name: _values(name, getattr(arguments, name)) for name in ("batches", "sequences", "images")}
    workload = _settled(arguments, sizes)
    from calibrate.learn.jobs import WorkloadSource
    from calibrate.learn.shapes import plan, values_around
    from calibrate.records.record import MeasuredOn
    from predictor.jobs import training_job

    device = {"cuda": MeasuredOn.DEVICE, "emulated": MeasuredOn.EMULATED}.get(arguments.device)
    source = WorkloadSource.of(workload, device, ["peakcast", *sys.argv[1:]])
    batches = sizes["batches"] or values_around("batch", workload.per_device_train_batch_size, 0)
    images = sizes["images"] or (workload.images_per_sample,)
    sequences: tuple[int, ...] = (0,)
    longest = None
    if workload.sequence_length is not None:
        facts = _facts(workload, max(images))
        room, longest = facts.room(max(images)), facts.positions
        sequences = sizes["sequences"] or values_around("sequence", workload.sequence_length, room, longest)
        if min(sequences) <= room:
            raise InputError(f"--sequences {min(sequences)}: {max(images)} image(s) take {room} tokens: give at least "
                             f"{room + 1}")
        largest = workload.replace(images_per_sample=max(images), sequence_length=max(
            *sequences, workload.sequence_length))
        training_job.check_room(Request.of(largest), facts)
    return source, plan(batches, sequences, images, probe=not arguments.no_probe, longest=longest)


def _settled(arguments: argparse.Namespace, listed: Mapping[str, tuple[int, ...]]):
    """The workload at its largest shape, with the tokens and images that a sample of its model has."""
    if options.workload(arguments).mode == "inference":
        raise InputError("mode inference: formulas are learned of training: use peakcast predict, or peakcast measure")
    command_line = options.given(arguments).values
    for name, sizes in zip(SCRIPT_KEYS, (listed["batches"] or (DEFAULT_BATCH,), listed["sequences"], listed["images"])):
        if name not in command_line and sizes:
            setattr(arguments, name, str(max(sizes)))
    workload = options.workload(arguments)
    from predictor.formula.learned import is_learned_file
    from predictor.jobs import dispatch

    if is_learned_file(workload.model):
        raise InputError(f"{file_name(workload.model)}: is a learned formula already: name a model, or a script "
                         "after --")
    return dispatch.resolve(workload).workload


def _facts(workload, images: int):
    """Facts of the model, among them the tokens per image and the number of positions.

    Args:
        images: images per sample.
    """
    from predictor.answer.model_list import building
    from predictor.events.model_facts import ModelFacts
    from predictor.model import models, parser
    from predictor.model.code_models import MODEL_TYPE, CodeModel
    from predictor.trace.inputs import Inputs

    config = models.find(workload.model)
    if isinstance(config, CodeModel):
        return ModelFacts(MODEL_TYPE, 0, 0, ())
    with building(config):
        model = parser.build_plain(config, workload.attn_implementation)
        inputs = Inputs(config, model, workload.image_sizes, workload.video_frames)
        return parser.describe(model, inputs.tokens_among(images))


SCRIPT_KEYS = ("per_device_train_batch_size", "sequence_length", "images_per_sample", "gpu", "capacity_bytes",
               "data_parallel_size", "rank")
"""Options that apply to a script."""


@dataclass(frozen=True)
class Symbol:
    """A number that may vary in a script's command.

    Attributes:
        mark: its placeholder in the command.
        option: the option that lists its values.
        key: the workload's key whose value the default values surround.
        default: that value if the key is not given.
        constant: the only value if the command has no placeholder and the key is not given.
    """

    name: str
    mark: str
    option: str
    key: str
    default: int
    constant: int

    def values(self, arguments: argparse.Namespace, centre: int | None) -> tuple[int, ...]:
        """The values at which the script is recorded.

        Raises:
            InputError: there are several values, and the command has no placeholder for them.
        """
        from calibrate.learn.shapes import values_around

        used = any(self.mark in word for word in arguments.command)
        listed = _values(self.option, getattr(arguments, self.option))
        if len(listed) > 1 and not used:
            raise InputError(f"--{self.option}: the command has no {self.mark} to put them into")
        if used:
            return listed or values_around(self.name, centre or self.default, 0)
        return listed or (centre or self.constant,)


def _script(arguments: argparse.Namespace):
    """The source and plan of a script."""
    from calibrate.learn.jobs import PLACEHOLDERS, ScriptSource
    from calibrate.learn.shapes import plan
    from predictor.common.gpus import DEFAULT as DEFAULT_GPU

    _check_script(arguments)
    values = {**dict.fromkeys(SCRIPT_KEYS), **options.parsed(arguments, SCRIPT_KEYS)}
    world, rank = values["data_parallel_size"], values["rank"] or 0
    if rank == "worst" or rank >= (world or 1):
        raise InputError(f"--rank: a script is recorded as one rank, from 0 to {(world or 1) - 1}: name it")
    check_placeholders(arguments.command, PLACEHOLDERS)
    marks = PLACEHOLDERS
    symbols = (Symbol("batch", marks["batch"], "batches", "per_device_train_batch_size", DEFAULT_BATCH, 1),
               Symbol("sequence", marks["sequence"], "sequences", "sequence_length", DEFAULT_SEQUENCE, 1),
               Symbol("images", marks["images"], "images", "images_per_sample", 1, 0))
    shapes = plan(*(symbol.values(arguments, values[symbol.key]) for symbol in symbols), probe=not arguments.no_probe)
    source = ScriptSource(command=tuple(arguments.command), gpu=values["gpu"] or DEFAULT_GPU,
                          capacity_bytes=values["capacity_bytes"], world_size=world or 1, pretends=world is not None,
                          rank=rank)
    return source, shapes


def _check_script(arguments: argparse.Namespace) -> None:
    """Rejects options that do not apply to a script."""
    from predictor.workload.keys import KEYS

    if not arguments.command:
        raise InputError("a command is missing after --: peakcast learn -o FILE -- python train.py --batch {batch}")
    if arguments.model is not None:
        raise InputError(f"both MODEL {quoted(arguments.model, 80)} and a script after -- are given: leave one out")
    if arguments.device == "cuda":
        raise InputError("--device cuda: a script is recorded on the emulated GPU only: leave it out")
    for name in (*KEYS, "workload"):
        if getattr(arguments, name, None) is not None and name not in SCRIPT_KEYS:
            raise InputError(f"--{name.replace('_', '-')}: the script decides that itself: leave it out")


def check_placeholders(command: list[str], known: Mapping[str, str]) -> None:
    """Rejects a word in braces that resembles a placeholder. Other braces belong to the script or to a shell."""
    for word in command:
        for name in re.findall(r"(?<!\$)\{(\w+)\}", word):
            if name not in known and nearest(name, known):
                raise InputError(f"{quoted(word, 80)}: {{{name}}} is no placeholder{nearest(name, known)}: they are "
                                 f"{', '.join(known.values())}")


def _values(option: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = text.replace(" ", "").split(",")
    if not all(part.isdecimal() and 0 < int(part) < 1 << 22 for part in parts if len(part) < 9) \
            or any(len(part) >= 9 for part in parts):
        raise InputError(f"--{option} must be whole numbers with commas between, such as 2,4,8, not {quoted(text, 80)}")
    return tuple(sorted({int(part) for part in parts}))


def _progress(shapes):
    """The shapes, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return shapes
    from rich.console import Console
    from rich.progress import track

    return track(shapes, description="Recording the job (kept until the formula is made)",
                 console=Console(stderr=True), transient=True)
