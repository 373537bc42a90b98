"""Plan a training job: rank the engines, checkpointing, optimizers and batch sizes that fit, cheapest first."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from predictor.commands import options, output
from predictor.common import numbers
from predictor.common.suggestions import file_name

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """examples:
  peakcast plan llava-1.5-7b --sequence-length 1024 --gpu h100-80gb --gpus 8 --global-batch-size 128
  peakcast plan llava-1.5-7b --sequence-length 1024 --gpu a100-40gb --gpus 4 --global-batch-size 64 --write job
  peakcast plan llama-3.1-8b --sequence-length 2048 --gpu a100-40gb --gpus 4   (the best of each method)
  peakcast plan llava-1.5-7b --zero-stage 2 --gpu h100-80gb --gpus 8 --maximize sequence
  peakcast plan llava-1.5-7b --sequence-length 1024 --gpu l40s --gpus 2 --vary recipe --json
  peakcast plan --workload job.yaml --deepspeed zero2.json --gpu h100-80gb   (what each knob saves)
  peakcast plan --from finetune.sh --gpu h100-80gb --gpus 8                   (the same training, cheaper)
  peakcast plan mine.npz --sequence-length 4096 --gpu h100-80gb              (a learned job)
  peakcast plan --workload job.yaml --gpu h100-80gb --details

Every key that is given keeps its value; all others may vary. A given micro batch may be split into smaller ones that
are accumulated, which trains the same (--keep split: it may not). Configurations that train the same model rank
first. After them come those with 8-bit optimizer states, other recipes or weights without fp32 masters, and those
that Hugging Face's Trainer does not run as planned (FSDP2, data parallelism over tensor parallelism). --gpus lets
tensor parallelism vary; --data-parallel-size and --tensor-parallel-size keep their values. The answer has at most
40 lines of 100 columns, unless --top asks for more rows; --details prints all.

exit codes: 0 a configuration fits, 1 none fits, 2 bad input
"""


TOP = 5
"""Configurations that are ranked, unless the user asks for another number."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the workload, of the search and of the output."""
    from predictor.plan.search import GOALS
    from predictor.plan.space import AXES, INSTEAD, SPLIT

    options.add_workload(parser)
    options.add_from(parser)
    options.add_python(parser)
    group = parser.add_argument_group("what to search")
    group.add_argument("--gpus", metavar="N", type=_count,
                       help="number of all GPUs: data-parallel replicas x tensor-parallel GPUs")
    group.add_argument("--global-batch-size", metavar="N", type=_count,
                       help="samples of an optimizer step on all GPUs: micro batch x accumulation x replicas")
    group.add_argument("--maximize", choices=GOALS, default="cost", metavar="WHAT",
                       help="cost: the cheapest sample (default); batch: the largest micro batch first; sequence: the "
                       "longest sequence first")
    usual, asked = (", ".join(axis.name for axis in AXES if axis.asked is flag) for flag in (False, True))
    group.add_argument("--vary", metavar="AXIS,…", type=_names, default=(), help=f"also vary: {asked}")
    group.add_argument("--keep", metavar="AXIS,…", type=_names, default=(), help=f"do not vary: {usual}, "
                       f"{INSTEAD} (on one GPU: adapters, shorter sequences, smaller pictures), {SPLIT} (of a given "
                       "micro batch into smaller ones)")
    group.add_argument("--top", metavar="N", type=_count, help=f"number of configurations to rank; default: {TOP}; on "
                       "one GPU the cheapest plain loop that fits is added")
    group.add_argument("--no-trace", action="store_true",
                       help="leave out configurations without a formula (a trace needs torch)")
    output.add_output(parser)
    output.add_details(parser, "the best of each method, each part of the cost, what does not fit or was left out, all "
                       "knobs, sources of the values, how costs are estimated, and what is not modelled")
    group.add_argument("--write", metavar="DIR",
                       help="write ds_config.json, training_arguments.json (for Hugging Face's HfArgumentParser) and "
                       "workload.json of the proposed configuration into a directory (only workload.json for FSDP2); "
                       "with --from, the user's own files instead, changed, and workload.json, or the answer says why "
                       "they cannot be changed")


def run(arguments: argparse.Namespace) -> int:
    """Plans and reports. The exit code says whether a configuration fits."""
    output.check_path(arguments.output, arguments.force)
    replicas, gpus = arguments.data_parallel_size, arguments.gpus
    arguments.data_parallel_size = replicas or (gpus and str(gpus))
    user = options.given(arguments)
    from predictor.answer.decisive_defaults import assumed_gpus
    from predictor.plan import Telling, Wanted, document, plan
    from predictor.plan.space import DATA, TENSOR, VARYING

    given, whole = user.values, None
    if user.source:  # a framework's configuration sets all keys; those that can vary are fixed only by an option
        parts = given.get(TENSOR, 1)
        gpus = gpus or (None if replicas else given.get(DATA, 1) * parts)
        whole = given if replicas else given | {DATA: max(1, gpus // parts)}
        given = {name: value for name, value in whole.items() if name in user.from_options or name not in VARYING}
    if gpus and not replicas:  # tensor parallelism may lower the number of replicas
        given = {name: value for name, value in given.items() if name != DATA}
    if arguments.write is not None:
        document.check_directory(arguments.write, arguments.force)
    wanted = Wanted(gpus=gpus, global_batch_size=arguments.global_batch_size, maximize=arguments.maximize,
                    top=arguments.top or TOP, vary=arguments.vary, keep=arguments.keep,
                    firm=user.from_options if user.source else None)
    from predictor.report.plan import progress_text

    told = output.Told()
    result = plan(given, wanted, whole=whole, source=user.source, label=user.label, trace=not arguments.no_trace,
                  telling=Telling(told.tracing, lambda step: told(lambda: progress_text(step))))
    if DATA not in user.values:
        result = replace(result, assumed=assumed_gpus(user.source, (DATA,), "torch", None, "--gpus"))
    texts = document.written(result, arguments.write) if arguments.write is not None else {}
    if texts:  # there are none if nothing fits, or for a learned job
        document.write(arguments.write, texts, arguments.force)

    def report(console: Console) -> None:
        from predictor.report import plan, plan_summary

        wrote = f"Wrote to {file_name(arguments.write)}: {', '.join(texts)}." if texts else ""
        if arguments.details:
            plan.report(console, result, wrote)
        else:
            plan_summary.report(console, result, all_ranked=arguments.top is not None, wrote=wrote)

    output.write(arguments, lambda: document.to_json(result), report)
    return 0 if result.proposed else 1


def _count(text: str) -> int:
    number = numbers.whole(text)
    if number is None or not 0 < number < 1 << 30:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text[:40]!r}")
    return number


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.replace(" ", "").split(",")))
