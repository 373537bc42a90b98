"""Predict the peak GPU memory of training or inference: its size, its moment, its factors, and whether it fits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from predictor.commands import options, output

if TYPE_CHECKING:
    from rich.console import Console

    from predictor.course.course import Request
    from predictor.workload.workload import Workload

EXAMPLES = """examples:
  peakcast predict llava-1.5-7b --recipe finetune --per-device-train-batch-size 16 \\
      --sequence-length 1024 --data-parallel-size 8 --zero-stage 2 --gpu h100-80gb
  peakcast predict llava-1.5-7b --sequence-length 2048 --deepspeed zero2.json --data-parallel-size 4
  peakcast predict --workload job.yaml --capacity-bytes 80GiB --json -o prediction.json
  peakcast predict --from scripts/v1_5/finetune.sh --data-parallel-size 8 --gpu a100-80gb
  peakcast predict --gpu h100-80gb -- torchrun --nproc_per_node 8 train.py --model_name_or_path …
  peakcast predict --run --gpu h100-80gb -- python train.py       (runs it on an emulated GPU)
  peakcast predict --workload job.yaml --minimum-capacity --snapshot predicted.pickle
  peakcast predict --workload job.yaml --python ~/venv/bin/python       (its torch, transformers, deepspeed)
  peakcast predict --workload job.yaml --gpu h100-80gb --samples lengths.csv     (tokens,images a line)
  peakcast predict --workload job.yaml --gpu h100-80gb --samples lengths.csv --epochs 1 --plot course.svg
  peakcast predict llava-1.5-7b --sequence-length 2048 --data-parallel-size 8 --zero-stage 2 \\
      --gpu h100-80gb --maximum-load
  peakcast predict llava-1.5-7b --mode inference --sequence-length 700 --max-new-tokens 256 \\
      --per-device-eval-batch-size 8 --gpu a100-40gb --maximum-load

exit codes: 0 it fits or no GPU was named, 1 it does not fit or is uncertain, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the workload, of the output, and of further searches."""
    options.add_workload(parser)
    options.add_from(parser)
    options.add_python(parser)
    parser.add_argument("--run", action="store_true", default=None,
                        help="run the job, or the command after --, on an emulated GPU for three optimizer steps, and "
                        "answer with what it allocated: for jobs that are not predicted (needs peakcast[calibrate]; "
                        "minutes). With --data-parallel-size N the command acts as one rank of N, --rank R (0)")
    output.add_output(parser)
    output.add_details(parser, "all moments, sources and defaults of the values, the calibration, what is not "
                       "modelled, and every change that was judged")
    group = parser.add_argument_group("what else to find out")
    group.add_argument("--minimum-capacity", action="store_true",
                       help="also search the smallest GPU memory in which the job survives (a second or two; with "
                       "max_split_size_mb up to a minute)")
    group.add_argument("--maximum-load", action="store_true",
                       help="also search what fits at most: the largest batch and the longest sequence; for inference "
                       "the longest prompt (for a conversation: the number of turns if it goes on with turns like its "
                       "last one) and the most sequences at once")
    group.add_argument("--remedies", action="store_true",
                       help="judge every change that may help, even if the job fits, and trace the model for those "
                       "that need it (minutes); without it, a job that does not surely fit gets the first that do")
    group.add_argument("--also-gpu", metavar="NAME", action="append", default=[],
                       help="another kind of GPU that trains in the same data-parallel job (repeat for further kinds): "
                       "the answer is for the one where the job fits worst, and says which batch fits each")
    group.add_argument("--loops", action="store_true",
                       help="also simulate the job in other training loops (a batch in each step, a loader one batch "
                       "ahead, outputs or gradients kept, more steps): the interval of reserved memory includes them")
    options.add_samples(group)
    options.add_course(parser)
    group.add_argument("--snapshot", metavar="FILE",
                       help="also write the predicted memory history for https://pytorch.org/memory_viz; if the job "
                       "does not fit, it is that without a memory limit")


def run(arguments: argparse.Namespace) -> int:
    """Predicts and reports. The exit code says whether the workload fits."""
    for path in (arguments.output, arguments.snapshot, arguments.plot):
        output.check_path(path, arguments.force)
    course = options.course(arguments)
    output.check_svg(arguments.plot, "--plot")
    output.check_different(arguments.snapshot, arguments.output, "--snapshot and -o")
    workload = options.workload(arguments)
    if course is not None:
        return _run_course(arguments, workload, course)
    from predictor.answer.predict import predict
    from predictor.answer.remedies import with_remedies

    tell = output.searching()
    prediction = predict(workload, history=bool(arguments.snapshot),
                         minimum_capacity=arguments.minimum_capacity,
                         maximum_load=arguments.maximum_load, samples=options.samples(arguments),
                         also_gpus=arguments.also_gpu, loops=arguments.loops, progress=output.progress,
                         tell=tell)
    prediction = with_remedies(prediction, workload, every=arguments.remedies, trace=arguments.remedies,
                               progress=output.progress, tell=tell)
    if prediction.history is not None:
        from predictor import snapshot

        snapshot.write(arguments.snapshot, prediction.history)

    def report(console: Console) -> None:
        from predictor.report import summary, table

        (table if arguments.details else summary).report(console, prediction)

    output.write(arguments, prediction.to_json, report)
    return options.exit_code(prediction)


def _run_course(arguments: argparse.Namespace, workload: Workload, request: Request) -> int:
    """Simulates a whole training over the samples, and reports it."""
    from predictor.answer.course_prediction import predict_course

    samples = options.samples(arguments)
    assert samples is not None  # options.course has checked it
    told = output.Told()
    prediction = predict_course(workload, samples, request, loops=arguments.loops, progress=output.progress,
                                tell=lambda text: told(lambda: f"simulating: {text}"))
    from predictor.report import course, course_plot

    if arguments.plot:
        output.write_file(arguments.plot, course_plot.plot(prediction))
    output.write(arguments, prediction.to_json,
                 lambda console: course.report(console, prediction, details=arguments.details))
    return options.exit_code(prediction)
