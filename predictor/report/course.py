"""Renders a course: the verdict, reserved memory over the steps, the first failure, its chance, what prevents it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from predictor.answer.prediction import Prediction
from predictor.common.safe_text import markup
from predictor.course.course import Chance, Course, Failure, Trial
from predictor.report import table, verdict
from predictor.report.layout import details_line, print_wrapped
from predictor.report.layout import table as empty_table
from predictor.report.units import GIB, size_text

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
    course = _course(prediction)
    console.print(headline(course), style=verdict.COLOURS[prediction.verdict])
    print_wrapped(console, verdict.title(prediction), style="dim")
    print_wrapped(console, *prediction.assumptions)
    console.print()
    for line in chart(course, console.width, ascii_only=not _can_draw(console)):
        console.print(line)
    console.print()
    print_wrapped(console, *sentences(course))
    if course.trials:
        console.print()
        console.print(_trials(course))
    console.print()
    if details:
        print_wrapped(console, "The batch that requests the most memory:")
        table.report(console, prediction)
    else:
        print_wrapped(console, details_line("the factors of the heaviest batch", "what is not modelled"))


def _course(prediction: Prediction) -> Course:
    assert prediction.course is not None  # callers have simulated one
    return prediction.course


def _can_draw(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


# sentences ------------------------------------------------------------------------------------------------------


def headline(course: Course) -> str:
    """The verdict in one line."""
    if course.failure is None:
        of = "" if course.limit_bytes is None else f" of {size_text(course.limit_bytes)}"
        ends = {"uncertain": ", but with a little less memory it may not", None: ""}.get(course.verdict, "")
        return (f"All {course.steps:,} steps run{ends}: PyTorch reserves at most "
                f"{size_text(course.peak_reserved_bytes)}{of}.")
    may = "may run" if course.verdict == "uncertain" else "runs"
    if not course.failure.step:
        return f"This training {may} out of memory in start-up."
    return f"This training {may} out of memory at step {course.failure.step:,} of {course.steps:,}."


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
    images = f", {failure.images:,} image(s)" if failure.images else ""
    return (f"Step {failure.step:,}{micro} of epoch {failure.epoch} fails on {place} in {failure.moment}: its batch is "
            f"{len(failure.samples)} × {failure.tokens:,} tokens{images} (samples {samples}). {_asks(failure)}.")


def _asks(failure: Failure) -> str:
    where = " of ".join(name for name in (failure.operator, failure.module) if name)
    return (f"{where} asks for {size_text(failure.requested_bytes)}, and of {size_text(failure.reserved_bytes)} "
            f"reserved {size_text(failure.idle_bytes)} are idle, in pieces that are too small")


def _creep(course: Course) -> str:
    """How reserved memory grew, and how much of it is idle."""
    reserved, idle = course.columns["peak_reserved_bytes"][1:], course.idle_bytes[1:]
    if not reserved:
        return ""
    last = next((step for step in range(len(reserved), 1, -1) if reserved[step - 1] > max(reserved[: step - 1])), 1)
    grew = f"grows from {size_text(reserved[0])} in step 1 to {size_text(max(reserved))}, last in step {last:,}" \
        if max(reserved) > reserved[0] else f"stays at most {size_text(max(reserved))}"
    return (f"On rank {course.rank} reserved memory {grew}; up to {size_text(max(idle))} of it is idle. The driver "
            f"grants or gets back {course.calls_per_step:,.2f} segments a step.")


def _likely(course: Course, chance: Chance) -> str:
    of = f"{course.steps:,} steps" if course.steps != course.steps_per_epoch else "one epoch"
    interval = f"{chance.low:.0%} to {chance.high:.0%} of such trainings, with 95 % confidence"
    if not chance.failed:
        return f"Of {chance.seeds} seeds none runs out of memory within {of}: at most {chance.high:.0%} of such " \
               "trainings do, with 95 % confidence."
    at = chance.failed_at
    when = f"at step {at[0]:,}" if len(at) == 1 else f"first at step {at[0]:,}, in the middle at {at[len(at) // 2]:,}"
    runs = "run" if chance.failed > 1 else "runs"
    return f"Of {chance.seeds} seeds {chance.failed} {runs} out of memory within {of}, {when}: {interval}."


def _drawn(course: Course) -> str:
    sampling = course.sampling
    ranks = f"{len(course.ranks)} ranks" + (f" of {len(course.ranks) + course.left_out}" if course.left_out else "") \
        if len(course.ranks) > 1 else f"rank {course.ranks[0]}"
    order = {"random": f"drawn at random with seed {sampling.seed}", "sequential": "in the file's order",
             "group_by_length": f"grouped by length with seed {sampling.seed}"}[sampling.strategy]
    first = ", the longest batch first" if sampling.longest_first else ""
    return (f"Batches of {course.samples:,} samples {order}{first}, each with its own events, on {ranks}; an epoch has "
            f"{course.steps_per_epoch:,} steps.")


def _trials(course: Course) -> Table:
    rows = empty_table("with (a colon: in PYTORCH_CUDA_ALLOC_CONF)", "this training", "other seeds\nthat failed",
                       "reserves\nat most", "segment calls\na step")
    for trial in course.trials:
        rows.add_row(trial.setting + (f" ({trial.costs})" if trial.costs else ""), _outcome(trial), _others(trial),
                     size_text(trial.peak_reserved_bytes), f"{trial.calls_per_step:,.2f}")
    return rows


def _outcome(trial: Trial) -> str:
    return "runs" if trial.failed_at is None else f"fails at step {trial.failed_at:,}"


def _others(trial: Trial) -> str:
    if not trial.seeds:
        return ""
    runs = trial.seeds - trial.failed
    return f"{runs} of {trial.seeds} run"


# pictures -------------------------------------------------------------------------------------------------------


def _thinned(values: Sequence[int], columns: int) -> list[int]:
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
    drawn = list(zip(_thinned(reserved, room), _thinned(allocated, room)))
    top = max(max(reserved), min(course.limit_bytes or 0, 2 * max(reserved)))
    (line, plain_line), (area, plain_area) = MARKS
    marks = (plain_line, plain_area) if ascii_only else (line, area)
    lines = []
    for row in range(HEIGHT, 0, -1):
        low, high = top * (row - 1) / HEIGHT, top * row / HEIGHT
        cells = "".join(marks[0] if low < held <= high else marks[1] if low < blocks else " " for held, blocks in drawn)
        limit = course.limit_bytes
        if limit is not None and low < limit <= high and not cells.strip():
            cells = "-" * len(drawn)
        lines.append(f"{high / GIB:6.1f} {'|' if ascii_only else '│'} {cells}".rstrip())
    last = f"step {len(reserved):,}" + (" fails" if course.failure else "")
    lines.append(" " * AXIS + "step 1" + last.rjust(max(len(drawn) - 6, len(last) + 1)))
    return [*lines, f"{' ' * AXIS}{marks[0]} reserved   {marks[1]} allocated, the most in each step, GiB"]


WIDTH, TOP, BOTTOM, LEFT, RIGHT = 1000, 64, 420, 64, 984
COLOURS = {"reserved": "#333333", "allocated": "#56b4e9"}


def plot(prediction: Prediction) -> str:
    """An SVG document: reserved and allocated bytes over the steps, what PyTorch may reserve, and the failure."""
    course = _course(prediction)
    reserved, allocated = (_thinned(course.columns[name], RIGHT - LEFT)
                           for name in ("peak_reserved_bytes", "peak_allocated_bytes"))
    limit = course.limit_bytes
    scale = 1.05 * max(*reserved, limit if limit and limit < 2 * max(reserved) else 0)

    def y(size: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * size / scale, 1)

    def x(index: int) -> float:
        return round(LEFT + (RIGHT - LEFT) * index / max(len(reserved) - 1, 1), 1)

    def path(values: Sequence[int]) -> str:
        return " L".join(f"{x(index)},{y(size)}" for index, size in enumerate(values))

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 480" font-family="sans-serif" '
             'font-size="13">', f"<title>{markup(headline(course))}</title>",
             f'<rect width="{WIDTH}" height="480" fill="#ffffff"/>',
             f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">{markup(headline(course))}</text>',
             f'<text x="{LEFT}" y="44" fill="#555555">{markup(verdict.title(prediction))}</text>']
    tick = next(t for power in range(-3, 7) for t in (10**power, 2 * 10**power, 5 * 10**power) if scale / GIB / t <= 8)
    for number in range(int(scale / GIB / tick) + 1):
        height = y(number * tick * GIB)
        lines.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{height}" y2="{height}" stroke="#dddddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{height + 4}" text-anchor="end">{number * tick:g}</text>')
    lines.append(f'<path d="M{LEFT},{BOTTOM} L{path(allocated)} L{x(len(allocated) - 1)},{BOTTOM} Z" '
                 f'fill="{COLOURS["allocated"]}"><title>allocated</title></path>')
    lines.append(f'<path d="M{path(reserved)}" fill="none" stroke="{COLOURS["reserved"]}" stroke-width="1.8">'
                 "<title>reserved</title></path>")
    if limit and limit <= scale:
        lines.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y(limit)}" y2="{y(limit)}" stroke="#d00000" '
                     'stroke-dasharray="6 4"/>')
        lines.append(f'<text x="{RIGHT}" y="{y(limit) - 5}" text-anchor="end" fill="#d00000">PyTorch may reserve '
                     f"{size_text(limit)}</text>")
    lines += [f'<text x="{LEFT}" y="{BOTTOM + 18}">start-up</text>',
              f'<text x="{RIGHT}" y="{BOTTOM + 18}" text-anchor="end">step {len(course.columns["retries"]) - 1:,}'
              f"{' fails' if course.failure else ''}</text>"]
    for index, (name, colour) in enumerate(COLOURS.items()):
        left = LEFT + 160 * index
        lines.append(f'<rect x="{left}" y="{BOTTOM + 30}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{left + 17}" y="{BOTTOM + 41}">{name}, GiB</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
