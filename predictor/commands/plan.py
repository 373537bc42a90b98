"""Plan a training job: which engine, checkpointing, optimizer, batch and accumulation fit, the cheapest first."""

from __future__ import annotations

import argparse

from predictor.commands import options, output

EXAMPLES = """examples:
  peakcast plan llava-1.5-7b --sequence-length 1024 --gpu h100-80gb --gpus 8 --global-batch-size 128
  peakcast plan llava-1.5-7b --sequence-length 1024 --gpu a100-40gb --gpus 4 --global-batch-size 64 --write job
  peakcast plan llama-3.1-8b --sequence-length 2048 --gpu a100-40gb --gpus 4   (which method: the best of each)
  peakcast plan llava-1.5-7b --zero-stage 2 --gpu h100-80gb --gpus 8 --maximize sequence
  peakcast plan llava-1.5-7b --sequence-length 1024 --gpu l40s --gpus 2 --vary recipe --json
  peakcast plan --workload job.yaml --deepspeed zero2.json --gpu h100-80gb   (what each knob would give)
  peakcast plan --from finetune.sh --gpu h100-80gb --gpus 8                   (the same training, cheaper)
  peakcast plan mine.npz --gpu h100-80gb                                     (a learned job)

Every key that is given stays; all others may vary. What is learned stays the same in the first of the ranking:
8-bit optimizer states, other recipes and weights without fp32 masters come after all that do without, and FSDP2 and
replicas of tensor parallelism, which Hugging Face's Trainer does not run as planned, after what it does. --gpus lets
tensor parallelism vary; --data-parallel-size and --tensor-parallel-size stay as given.

exit codes: 0 something fits, 1 nothing does, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the workload's options, the search's and the output's."""
    from predictor.plan.search import GOALS
    from predictor.plan.space import AXES

    options.add_workload(parser)
    options.add_from(parser)
    group = parser.add_argument_group("what to search")
    group.add_argument("--gpus", metavar="N", type=_count,
                       help="all that there are: replicas x GPUs that share layers (tensor parallelism)")
    group.add_argument("--global-batch-size", metavar="N", type=_count,
                       help="samples of an optimizer step on all GPUs: micro batch x accumulation x replicas")
    group.add_argument("--maximize", choices=GOALS, default="cost", metavar="WHAT",
                       help="cost: the cheapest sample (default); batch: the largest micro batch first; sequence: the "
                       "longest sequence first")
    usual, asked = (", ".join(axis.name for axis in AXES if axis.asked is flag) for flag in (False, True))
    group.add_argument("--vary", metavar="AXIS,…", type=_names, default=(), help=f"also vary: {asked}")
    group.add_argument("--keep", metavar="AXIS,…", type=_names, default=(), help=f"do not vary: {usual}")
    group.add_argument("--top", metavar="N", type=_count, default=5, help="configurations to rank; default: 5; on one "
                       "GPU with the cheapest plain loop")
    group.add_argument("--no-trace", action="store_true",
                       help="leave out what has no formula yet (a trace needs torch)")
    output.add_output(parser)
    group.add_argument("--write", metavar="DIR",
                       help="write ds_config.json, training_arguments.json (for Hugging Face's HfArgumentParser) and "
                       "workload.json of the proposed configuration there (under FSDP2 the last alone)")


def run(arguments: argparse.Namespace) -> int:
    """Plans and reports; the exit code says whether something fits."""
    output.check_path(arguments.output, arguments.force)
    replicas, gpus = arguments.data_parallel_size, arguments.gpus
    arguments.data_parallel_size = replicas or (gpus and str(gpus))
    found = options.given(arguments)
    from predictor.plan import Wanted, document, plan
    from predictor.plan.space import DATA, TENSOR, VARYING

    given, whole = found.values, None
    if found.source:  # a framework's configuration says everything: what can vary is kept only if an option says it
        parts = given.get(TENSOR, 1)
        gpus = gpus or (None if replicas else given.get(DATA, 1) * parts)
        whole = given if replicas else given | {DATA: max(1, gpus // parts)}
        given = {name: value for name, value in whole.items() if name in found.from_options or name not in VARYING}
    if gpus and not replicas:  # then they may be fewer
        given = {name: value for name, value in given.items() if name != DATA}
    if arguments.write is not None:
        document.check_directory(arguments.write, arguments.force)
    wanted = Wanted(gpus=gpus, global_batch_size=arguments.global_batch_size, maximize=arguments.maximize,
                    top=arguments.top, vary=arguments.vary, keep=arguments.keep)
    made = plan(given, wanted, whole=whole, source=found.source, label=found.label, trace=not arguments.no_trace,
                progress=output.progress)
    documents = document.files(made) if arguments.write is not None else {}
    if documents:  # none where nothing fits, nor of a learned job
        document.write(arguments.write, documents)

    def report(console) -> None:
        from predictor.report.plan import report

        report(console, made)

    output.write(arguments, lambda: document.to_json(made), report)
    return 0 if made.proposed else 1


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:10]) < 1 << 30:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text[:40]!r}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.replace(" ", "").split(",")))
