"""Renders a course: the verdict, reserved memory over the steps, the first failure, its chance, what prevents it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from predictor.answer.prediction import Prediction
from predictor.course.course import Chance, Course, Failure, Trial
from predictor.report import loops, table, verdict
from predictor.report.layout import details_line, numbered, print_wrapped
from predictor.report.layout import table as empty_table
from predictor.report.units import GIB, batch_text, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

HEIGHT = 9
"""Lines of the chart."""
AXIS = 9
SHOWN_SAMPLES = 8
"""Samples of a batch that are named."""
MARKS = (("━", "="), ("▒", "A"))
"""Characters for reserved and allocated bytes, each with its replacement on ASCII terminals."""


def report(console: Console, prediction: Prediction, *, details: bool = False) -> None:
    """Prints a course; with ``details`` also what is known of its heaviest batch."""
    course = of(prediction)
    console.print(headline(course), style=verdict.COLOURS[prediction.verdict])
    print_wrapped(console, verdict.title(prediction), style="dim")
    print_wrapped(console, *prediction.assumptions)
    console.print()
    drawn = chart(course, console.width, ascii_only=not _can_draw(console))
    for line in [*drawn, ""] if drawn else []:
        console.print(line)
    print_wrapped(console, *sentences(course))
    if course.trials:
        console.print()
        console.print(_trials(course))
    console.print()
    print_wrapped(console, *_advice(prediction))
    heading, which = _shown(course)
    if details:
        print_wrapped(console, heading)
        table.report(console, prediction)
    else:
        print_wrapped(console, *loops.sentences(prediction), *(f"Caution: {row.text}." for row in prediction.cautions),
                      details_line(f"the factors of {which}", "what is not modelled"))


def _shown(course: Course) -> tuple[str, str]:
    """The batch that the prediction is of (``Simulation.heaviest``), above its figures and in a sentence."""
    if course.fails_in_training:
        return "The batch that fails, as if each step had it:", "the failing batch"
    if course.eval_steps:
        return ("Training's largest batch, as if each step had it; those of evaluations are not shown:",
                "training's largest batch")
    return "The batch that requests the most memory:", "the heaviest batch"


def of(prediction: Prediction) -> Course:
    """The course of a prediction that has one."""
    assert prediction.course is not None  # callers have simulated one
    return prediction.course


def _can_draw(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


# sentences ------------------------------------------------------------------------------------------------------


def headline(course: Course) -> str:
    """The verdict in one line; without a GPU what PyTorch reserves."""
    if course.limit_bytes is None:
        return (f"PyTorch reserves at most {size_text(course.peak_reserved_bytes)} in "
                f"{numbered(course.steps, 'step')}; --gpu NAME or --capacity-bytes tells whether they run.")
    if course.failure is None:
        of = f" of {size_text(course.limit_bytes)}"
        ends = ", but with a little less memory they may not" if course.verdict == "uncertain" else ""
        if course.verdict == "fits" and course.chance and course.chance.failed:
            ends = (f" with seed {course.sampling.seed}, but {course.chance.failed} of {course.chance.seeds} seeds "
                    f"run{'s' * (course.chance.failed == 1)} out of memory")
        run = "The only step runs" if course.steps == 1 else f"All {course.steps:,} steps run"
        return (f"{run}{ends}: PyTorch reserves at most "
                f"{size_text(course.peak_reserved_bytes)}{of}.")
    may = "may run" if course.verdict == "uncertain" else "runs"
    if not course.failure.step:
        return f"This training {may} out of memory in start-up."
    place = "in the evaluation after" if course.failure.evaluated else "at"
    return f"This training {may} out of memory {place} step {course.failure.step:,} of {course.steps:,}."


def sentences(course: Course) -> list[str]:
    """What happens, how likely it is, and which batches were drawn."""
    return [*([_failed(course.failure)] if course.failure else []), _creep(course),
            *([_likely(course, course.chance)] if course.chance else []), _drawn(course)]


def _failed(failure: Failure) -> str:
    place = f"rank {failure.rank}"
    if not failure.step:
        return f"Start-up fails on {place}: {_asks(failure)}."
    samples = ", ".join(map(str, failure.samples[:SHOWN_SAMPLES])) + ", …" * (len(failure.samples) > SHOWN_SAMPLES)
    micro = f", micro-step {failure.micro_step}" if failure.micro_step > 1 else ""
    place = f"Step {failure.step:,}{micro} of epoch {failure.epoch} fails on {place}" if not failure.evaluated else \
        f"The evaluation after step {failure.step:,} fails on {place} at its batch {failure.evaluated:,}"
    images = f", {numbered(failure.images, 'image')}" if failure.images else ""
    batch = batch_text(len(failure.samples), failure.tokens, packed=failure.packed)
    return (f"{place} in {failure.moment}: {'this' if failure.evaluated else 'its'} batch is {batch}{images} "
            f"(sample{'s' * (len(failure.samples) > 1)} {samples}). {_asks(failure)}.")


def _asks(failure: Failure) -> str:
    where = " of ".join(name for name in (failure.operator, failure.module) if name)
    pieces = ", in pieces that are too small" if failure.idle_bytes >= failure.requested_bytes else ""
    return (f"{where} asks for {size_text(failure.requested_bytes)}, and of {size_text(failure.reserved_bytes)} "
            f"reserved {size_text(failure.idle_bytes)} are idle{pieces}")


def _creep(course: Course) -> str:
    """How reserved memory grew, and how much of it is idle."""
    reserved, idle = course.columns["peak_reserved_bytes"][1:], [*course.idle_bytes[1:]]
    idle += [course.failure.idle_bytes] if course.failure else []
    if not reserved:
        return ""
    last = next((step for step in range(len(reserved), 1, -1) if reserved[step - 1] > max(reserved[: step - 1])), 1)
    grew = f"grows from {size_text(reserved[0])} in step 1 to {size_text(max(reserved))}, last in step {last:,}" \
        if size_text(max(reserved)) != size_text(reserved[0]) else f"stays at most {size_text(max(reserved))}"
    most = size_text(course.peak_reserved_bytes)
    before = f" (in start-up {most})" if course.peak_reserved_bytes > max(reserved) else ""
    return (f"On rank {course.rank} reserved memory {grew}{before}; up to {size_text(max(idle))} of it is idle. The "
            f"driver grants or gets back {course.calls_per_step:,.2f} segments a step.")


def _likely(course: Course, chance: Chance) -> str:
    seeds = f"of {chance.seeds} seed{'s' * (chance.seeds != 1)}"
    of = numbered(course.steps, "step") if course.steps != course.steps_per_epoch else "one epoch"
    interval = f"{chance.low:.0%} to {chance.high:.0%} of such trainings, with 95 % confidence"
    if not chance.failed:
        return f"None {seeds} runs out of memory within {of}: at most {chance.high:.0%} of such " \
               "trainings do, with 95 % confidence."
    at = chance.failed_at
    when = f"at step {at[0]:,}" if len(at) == 1 else (
        f"at step {at[0]:,} at the earliest and at step {at[len(at) // 2]:,} in the median")
    runs = "run" if chance.failed > 1 else "runs"
    return f"{chance.failed} {seeds} {runs} out of memory within {of}, {when}: {interval}."


def _drawn(course: Course) -> str:
    sampling = course.sampling
    ranks = f"{len(course.ranks)} ranks" + (f" of {len(course.ranks) + course.left_out}" if course.left_out else "") \
        if len(course.ranks) > 1 else f"rank {course.ranks[0]}"
    order = {"random": f"drawn at random with seed {sampling.seed}",
             "sequential": "in the file's order, the same with every seed",
             "group_by_length": f"grouped by length with seed {sampling.seed}"}[sampling.strategy]
    rows = f", packed into rows ({sampling.packing})," if sampling.packing != "none" else ""
    first = ", the longest batch first" if sampling.longest_first else ""
    batches = "1 batch is" if course.eval_batches == 1 else f"{course.eval_batches:,} batches are"
    evaluated = "" if not course.eval_steps else " No evaluation falls within these steps." \
        if course.eval_steps > course.steps else \
        f" After every {'step' if course.eval_steps == 1 else f'{course.eval_steps:,} steps'} {batches} evaluated."
    added = " Those of text alone are given images, as training programs add them so that each batch trains the " \
            "same weights." if course.adds_images else ""
    return (f"Batches of {numbered(course.samples, 'sample')}{rows} {order}{first}, each with its own events, on "
            f"{ranks}; an epoch has {numbered(course.steps_per_epoch, 'step')}.{evaluated}{added}")


def _advice(prediction: Prediction) -> list[str]:
    """How to read the table of changes, and where to look on if none helps."""
    course, workload = of(prediction), prediction.workload
    if not course.trials and not course.failure:
        return []
    lines = ["A change with a colon is a value of PYTORCH_CUDA_ALLOC_CONF."] * bool(course.trials)
    if any("per_process_memory_fraction" in trial.setting for trial in course.trials):
        lines.append("Only this table simulates per_process_memory_fraction: --allocator-conf does not take it.")
    if course.failure is None or any(trial.prevents for trial in course.trials):
        return lines
    if course.failure.evaluated:
        smaller = "a still smaller --per-device-eval-batch-size, or " if len(course.failure.samples) > 1 else ""
        lines.append(f"It is the evaluation that runs out of memory: give {smaller}shorter --eval-samples.")
    elif course.fails_in_training:
        lines.append("Other engines and smaller batches are judged for one batch: leave out --samples and what is of a "
                     "whole training, and give --per-device-train-batch-size "
                     f"{workload['per_device_train_batch_size']} --sequence-length {workload['sequence_length']}.")
    return lines


def _trials(course: Course) -> Table:
    seeds = ["other failing\nseeds"] if course.chance else []
    rows = empty_table("with", "this training", *seeds, "reserves\nat most", "segment calls\na step")
    for trial in course.trials:
        setting = trial.setting.replace(",", ", ")  # where a line may be broken; PyTorch ignores spaces
        rows.add_row(setting + (f" ({trial.costs})" if trial.costs else ""), _outcome(trial),
                     *[_others(trial) for _ in seeds], size_text(trial.peak_reserved_bytes),
                     f"{trial.calls_per_step:,.2f}")
    return rows


def _outcome(trial: Trial) -> str:
    return "runs" if trial.failed_at is None else f"fails at step {trial.failed_at:,}"


def _others(trial: Trial) -> str:
    if not trial.seeds:
        return ""
    runs = trial.seeds - trial.failed
    return f"{runs} of {trial.seeds} run"


# pictures -------------------------------------------------------------------------------------------------------


def thinned(values: Sequence[int], columns: int) -> list[int]:
    """The most of each of so many stretches of the steps."""
    count = min(columns, len(values))
    ends = [index * len(values) // count for index in range(count + 1)]
    return [max(values[begin:end]) for begin, end in pairwise(ends)]


def chart(course: Course, width: int, *, ascii_only: bool = False) -> list[str]:
    """Reserved and allocated bytes over the steps, as lines of text."""
    reserved, allocated = (list(course.columns[name][1:]) for name in ("peak_reserved_bytes", "peak_allocated_bytes"))
    if not reserved:
        return []
    room = max(10, width - AXIS)
    drawn = list(zip(thinned(reserved, room), thinned(allocated, room)))
    limit = course.limit_bytes if course.limit_bytes and course.limit_bytes <= 2 * max(reserved) else 0
    top = max(*reserved, limit)
    (line, plain_line), (area, plain_area) = MARKS
    marks = (plain_line, plain_area) if ascii_only else (line, area)
    lines, draws_limit = [], False
    for row in range(HEIGHT, 0, -1):
        low, high = top * (row - 1) / HEIGHT, top * row / HEIGHT
        cells = "".join(marks[0] if low < held <= high else marks[1] if low < blocks else " " for held, blocks in drawn)
        if low < limit <= high and not cells.strip():
            cells, draws_limit = "-" * len(drawn), True
        lines.append(f"{high / GIB:6.1f} {'|' if ascii_only else '│'} {cells}".rstrip())
    last = f"step {len(reserved):,}" + (" fails" if course.failure else "")
    lines.append(" " * AXIS + "step 1" + last.rjust(max(len(drawn) - 6, len(last) + 1)))
    legend = f"{marks[0]} reserved   {marks[1]} allocated, the most in each step, GiB"
    return [*lines, " " * AXIS + legend + "   - what PyTorch can reserve" * draws_limit]
