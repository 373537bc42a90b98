"""What the attack's rows add up to, and the page about it."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.model import models
from tests.attack.answers import FEW_BYTES, adapted, pages
from tests.attack.seeded_bugs import OWN
from tests.attack.valid_files import MOST_TIMES, SPARE_BYTES
from tests.attack.valid_files import SECONDS as CLOCK_SECONDS
from tests.attack.worker import DIGEST_BYTES

Row = Mapping[str, Any]


def problems(row: Row) -> Iterator[str]:
    """What a row found, a line each."""
    for finding in row.get("findings", ()):
        yield finding["problem"]
    for violation in row.get("violations", ()):
        yield f"{violation['relation']}: {violation['numbers']} of {violation['jobs']}"
    for kill in row.get("kills", {}).values():
        yield from kill["wrong"]
    yield from row.get("disturbance", ())
    if "not_tried" in row:
        yield f"not tried: {row['not_tried']}"
    if row["part"] == "seeded" and not row["found_by"]:
        yield "not found"


LEAST = {"distinct inputs": 100_000, "relations": 20_000, "models of relations that are known by name": 20, "kills of a running command": 50, "seeded bugs": 20,
         "bugs among them that this project had": 10}
"""What the whole attack tries at least."""


@dataclass
class Summary:
    """Sums over all rows.

    Attributes:
        formats: name of a format -> inputs, refused ones, findings, the longest in seconds, the highest memory in bytes, of the refused ones
            those that only lack a formula, and the longest by the clock, or None if a row is older and lacks it.
        distinct: name of a format -> digests of its inputs, each once.
        findings: format, problem and input of each that is kept.
        relations: relation -> how often it was checked.
        kills: scene and signal -> kills of a command that ran, kills that came after its end, and kills with another end.
        disturbances: name -> what is wrong.
        not_run: disturbances that the machine does not allow, each with why.
        files: valid files near the limits of their readers, with the time and memory of each reader.
        seeded: bug -> what found it; empty if nothing did.
    """

    dates: set[str] = field(default_factory=set)
    formats: dict[str, list[Any]] = field(default_factory=dict)
    distinct: dict[str, set[bytes]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    relations: Counter[str] = field(default_factory=Counter)
    models: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    violations: int = 0
    kills: dict[str, list[int]] = field(default_factory=dict)
    disturbances: dict[str, list[str]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    files: list[Row] = field(default_factory=list)
    seeded: dict[str, Row] = field(default_factory=dict)
    branches: Row | None = None

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Summary:
        summary = cls()
        for row in rows:
            summary.dates |= {row["date"]} if "date" in row else set()
            getattr(summary, f"_add_{row['part']}")(row)
        return summary

    def _add_fuzz(self, row: Row) -> None:
        name, digests = row["name"].partition("/")[0], base64.b64decode(row["digests"])
        self.distinct.setdefault(name, set()).update(
            digests[place:place + DIGEST_BYTES] for place in range(0, len(digests), DIGEST_BYTES))
        one = self.formats.setdefault(name, [0, 0, 0, 0.0, 0, 0, 0.0])
        for place, column in enumerate(("inputs", "refused", "problems")):
            one[place] += row[column]
        one[3], one[4] = max(one[3], row["seconds"]), max(one[4], row["bytes"])
        one[5] += row["untraced"]
        one[6] = max(one[6], row["clock_seconds"]) if "clock_seconds" in row and one[6] is not None else None
        self.findings += [f"{name}: {' '.join(found['problem'].split())[:200]}: `{json.dumps(found['input'])[:600]}`" for found in row["findings"]]

    def _add_relations(self, row: Row) -> None:
        self.relations.update(row["checked"])
        self.models |= set(row["models"])
        self.asked |= {*row["models"], *row.get("unanswered", ())}
        self.violations += len(row["violations"])

    def _add_kills(self, row: Row) -> None:
        if "disturbance" in row:
            self.disturbances[row["name"]] = list(problems(row))
            self.not_run |= {row["name"]: row["not_run"]} if "not_run" in row else {}
            self.files += row.get("files", ())
            return
        one = self.kills.setdefault(row["name"].rpartition("/")[0], [0, 0, 0])
        for kill in row["kills"].values():
            one[0 if kill["running"] else 1] += 1
            one[2] += bool(kill["wrong"])

    def _add_seeded(self, row: Row) -> None:
        self.seeded[row["name"]] = row

    def _add_branches(self, row: Row) -> None:
        self.branches = row

    @property
    def known(self) -> set[str]:
        """The models of relations that are known by name. The others are variants of them."""
        return self.models & set(models.known_names())

    @property
    def disturbed(self) -> list[str]:
        """Disturbances with a problem."""
        return [name for name, wrong in self.disturbances.items() if wrong]

    def total(self, place: int) -> int:
        """Inputs (0), refused ones (1), findings (2) or inputs that lack a formula (5) of all formats."""
        return int(sum(one[place] for one in self.formats.values()))

    def killed(self, place: int) -> int:
        """Kills of a command that ran (0), kills just after its end (1), or kills with another end (2)."""
        return sum(one[place] for one in self.kills.values())

    def figures(self) -> dict[str, float]:
        """The numbers that the check is judged by."""
        return {"findings among inputs": self.total(2), "violated relations": self.violations,
                "kills with another end": self.killed(2) + len(self.disturbed),
                "seeded bugs that were not found": sum(not row["found_by"] for row in self.seeded.values())}

    def too_few(self) -> list[str]:
        """What an attack has tried less of than a whole one does (:data:`LEAST`)."""
        tried = {"distinct inputs": sum(map(len, self.distinct.values())), "relations": sum(self.relations.values()),
                 "models of relations that are known by name": len(self.known), "kills of a running command": self.killed(0),
                 "seeded bugs": len(self.seeded), "bugs among them that this project had": sum(bool(row["met"]) for row in self.seeded.values())}
        return [f"{tried[name]:,} {name}, of {least:,}" for name, least in LEAST.items() if tried[name] < least]

    def lines(self) -> Iterator[str]:
        """The sums in words."""
        most_seconds, most_bytes = (max((one[place] for one in self.formats.values()), default=0) for place in (3, 4))
        clocks = [one[6] for one in self.formats.values()]
        clock = "an unknown time" if None in clocks else f"{max(clocks, default=0):.1f} s"
        distinct = sum(map(len, self.distinct.values()))
        yield (f"{self.total(0):,} inputs of {len(self.formats)} formats, {distinct:,} of them distinct, {self.total(1):,} refused, {self.total(5):,} of them for want of a formula: "
               f"{self.total(2)} findings; "
               f"at most {most_seconds:.1f} s of the processor, {clock} by the clock and {most_bytes / 1e6:.0f} MB")
        yield (f"{sum(self.relations.values()):,} relations over {len(self.models)} models, {len(self.known)} known by name and {len(self.models - self.known)} "
               f"variants of them: {self.violations} violated; without an answer: {', '.join(sorted(self.asked - self.models)) or 'none'}")
        yield (f"{self.killed(0)} kills of a running command, and {self.killed(1)} just after its end: {self.killed(2)} with another end; "
               f"{len(self.disturbances)} disturbances: {len(self.disturbed)} with a problem, {len(self.not_run)} not run")
        before = sum(bool(row["met"]) and row["met"] not in OWN for row in self.seeded.values())
        own = sum(row["met"] in OWN for row in self.seeded.values())
        yield (f"{sum(bool(row['found_by']) for row in self.seeded.values())} of {len(self.seeded)} seeded bugs found; this project had met "
               f"{before} of them otherwise, and {own} in earlier attacks")
        if self.branches:
            yield f"{self.branches['reached']:,} of {self.branches['branches']:,} branches of {self.branches['of']} reached by {self.branches['inputs']:,} inputs"


def text(summary: Summary) -> str:
    """The page, in Markdown."""
    return "\n".join([
        "# Attacks", "", "Made by `python scripts/check.py attack`, which makes inputs of every format, compares predictions of related jobs,",
        "kills commands at random times, and seeds known bugs in a copy of the code to see whether it finds them. "
        f"Run on {' and '.join(sorted(summary.dates)) or 'no day'}.", "", *(f"- {line}." for line in summary.lines()), "", *_formats(summary), "", *_relations(summary), "",
        *_kills(summary), "", *_seeded(summary)]) + "\n"


def _formats(summary: Summary) -> Iterator[str]:
    yield from ("## Inputs by format", "", "Each input is read or refused in one line (exit code 2): no traceback, at most 5 s of processor time, 15 s by the clock, and 500 MB of",
                "resident memory, of the process or of one that it starts, not of both together. What took long by the clock is judged once more before it",
                "is a finding, because the machine may have been busy. The only processes that inputs start match a regular expression from the",
                "input (3 s at most) or render a chat template (256 MiB at most).",
                "A batch judges an input once; two batches may judge the same one. Nothing is traced: what no formula is shipped for is refused. Seconds include those of a prediction where one followed, as after nearly",
                "all of `job` that are not refused. Of `tokens`, which transformers reads, the import of transformers and torch, about",
                "700 MB and 5 s that no input changes, counts in neither bound: the memory is what an input adds.", "",
                "Commands get inputs of predict, explain, models, profiles, schema, fits, oom, replay and samples. Not fuzzed: plan, explore, report, learn,",
                "calibrate, measure and dryrun, what runs other programs (`--run`, `--python`), and what may take longer: options that search",
                "(`--maximum-load`, `--remedies`), `--loops`, which simulates up to eleven loops of ten steps, courses of more than two steps, of several seeds, of steps with hundreds of micro-batches or with evaluations of thousands of batches, and steps with",
                "more than 20 pictures in the micro-batches that are simulated, which are at most three: with more large ones a step of Qwen2.5-VL has over a",
                "million allocations, and takes up to ten seconds and 1 GB, until a micro-batch is refused from 49 on. Jobs of FSDP are refused for want of a formula, but for those that were measured: how long they take on many GPUs is not seen here.", "", "| format | inputs | distinct | refused | for want of a formula | findings | longest (s) | by the clock (s) | most memory (MB) |",
                "|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, (inputs, refused, findings, seconds, size, untraced, clock) in sorted(summary.formats.items()):
        yield f"| {name} | {inputs:,.0f} | {len(summary.distinct[name]):,} | {refused:,.0f} | {untraced:,.0f} | {findings:.0f} | {seconds:.1f} | {'not kept' if clock is None else f'{clock:.1f}'} | {size / 1e6:.0f} |"
    if summary.findings:
        yield from ("", "Findings:", "", *(f"- {line}" for line in summary.findings))


def _relations(summary: Summary) -> Iterator[str]:
    yield from ("## Relations", "", "A relation is counted only where it could be violated. Pages of `explore` are compared with Python's answer to the last byte, except that on",
                f"other GPUs than the page's own the requested bytes of a moment may differ by up to {FEW_BYTES >> 10} KiB, because engines' own temporaries are composed there.",
                f"They are made of {len(pages())} jobs: {', '.join(job.model for job in pages())}. Fresh traces are those of the first job of each model of which",
                f"formulas are shipped. Adapters are those of ranks 8 and 16 of {len(adapted())} models, and more of a small one. A larger capacity is compared only where",
                "the driver refuses the smaller one nothing: where it does, PyTorch empties its cache, with which a job may survive that dies with more memory.", "",
                f"Models known by name: {', '.join(sorted(summary.known)) or 'none'}.",
                f"Variants of other depths or heads: {', '.join(sorted(summary.models - summary.known)) or 'none'}.", "", "| relation | checked |", "|---|---:|")
    for name, count in sorted(summary.relations.items()):
        yield f"| {name.replace('<=', '≤')} | {count:,} |"


def _kills(summary: Summary) -> Iterator[str]:
    yield from ("## Kills", "", "A command is killed at a random time of its run, seldom just after its end, and run again; its result must be that of a run to the end.", "",
                "| command, signal | killed while it ran | just after its end | with another end |", "|---|---:|---:|---:|")
    for name, (ran, over, bad) in sorted(summary.kills.items()):
        yield f"| {name.replace('/', ', ')} | {ran} | {over} | {bad} |"
    yield from ("", "| disturbance | problems |", "|---|---|")
    for name, wrong in sorted(summary.disturbances.items()):
        yield f"| {name.replace('_', ' ')} | {f'not run: {summary.not_run[name]}' if name in summary.not_run else len(wrong) or 'none'} |"
    if summary.files:
        yield from _files(summary.files)


def _files(files: Iterable[Row]) -> Iterator[str]:
    yield from ("", f"Valid files near the limits of their readers are answered or refused in one line, within {CLOCK_SECONDS} s and {MOST_TIMES} times their size and "
                f"{SPARE_BYTES / 1e6:.0f} MB of memory. The bounds of other inputs do not hold for them:", "", "| file | its size (MB) | reader | end | by the clock (s) | most memory (MB) |", "|---|---:|---|---|---:|---:|")
    for row in files:
        end = row["problem"] or row["refused"] or "read"
        seconds, size = ("" if row[name] is None else f"{row[name] / unit:.{digits}f}" for name, unit, digits in (("seconds", 1, 1), ("bytes", 1e6, 0)))
        yield f"| {row['file']} | {row['file_bytes'] / 1e6:.0f} | `{row['reader']}` | {' '.join(end.split())[:200].replace('|', '/')} | {seconds} | {size} |"


def _seeded(summary: Summary) -> Iterator[str]:
    yield from ("## Seeded bugs", "", "Each is put into a copy of the code by a patch. \"Met before\" is the commit that mended a bug that this project had; "
                f"what {', '.join(OWN)} mended, an earlier attack had found. Only inputs of the attack's own batches are tried: the number of the one that found a bug",
                "is followed by how many batches the whole attack has of that format. What finds a bug finds nothing in the code without it.", "",
                "| bug | met before | found by |", "|---|---|---|")
    for name, row in sorted(summary.seeded.items()):
        batch = f", batch {row['batch'] + 1} of {row['batches']}" if "batch" in row else ""
        yield f"| {name} | {row['met'] or 'no'} | {row['found_by'] or '**not found**'}{batch} |"
