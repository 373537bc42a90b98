"""Compare the tracer with published measurements on real H100s: the plain operators of Liger's benchmarks.

    pip install -e '.[trace]'
    python scripts/check.py liger_h100 DIRECTORY      # with plain_ops_h100.csv in it

Each measured row is the median of max_memory_allocated() over ten calls. Here the operator runs on meta tensors, as in
the trace of a model. Weights, inputs and old gradients stay allocated, and each allocation is rounded up to 512 bytes.
Nothing is tuned to these numbers. The table goes to profiles/pages/liger_h100.md. No GPU is needed.
"""

from __future__ import annotations

import csv
import gc
import io
import json
import statistics
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from calibrate.checks.directories import PAGES
from calibrate.checks.liger_operators import OPERATORS
from calibrate.checks.outcome import Outcome
from predictor.allocator.constants import MIN_BLOCK
from predictor.common import gpus
from predictor.common.files import read_text
from predictor.events import workspaces
from predictor.events.events import Moment
from predictor.trace.cuda_paths import as_on_cuda
from predictor.trace.tracer import Tracer

PAGE = PAGES / "liger_h100.md"
PLAIN = ("torch", "huggingface")
"""Providers that run plain PyTorch. Megatron's layers are other code, except its norm, which is PyTorch's."""
MOST_BYTES = 64 << 20
"""Largest size in bytes of the file of measurements that is read."""
CALLS = 2
"""Number of calls that are traced. From the second call on, gradients of the call before exist."""
MOST_TOKENS = 512
"""Largest number of tokens of ``fused_moe`` that is compared: its loop over experts would take an hour beyond that."""


def options(parser: ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="where plain_ops_h100.csv is")
    parser.add_argument("--only", nargs="*", default=list(OPERATORS),
                        help="compare these operators only, and print each of their rows")


def jobs(args: Namespace) -> list[dict[str, str]]:
    """The measured rows of the chosen operators and of plain PyTorch."""
    text = read_text(args.directory / "plain_ops_h100.csv", "the measurements", MOST_BYTES)
    return [row for row in csv.DictReader(io.StringIO(text, newline=""))
            if row["kernel_provider"] in PLAIN and row["kernel_name"] in args.only and _is_quick(row)]


def measure(jobs: list[dict[str, str]], args: Namespace) -> list[tuple[dict[str, str], float]]:
    """Each row with its predicted peak in MiB. The measured peaks are Liger's."""
    return [(row, _predicted(row)) for row in track(jobs, console=Console(stderr=True), transient=True)]


def table(compared: list[tuple[dict[str, str], float]], args: Namespace) -> Outcome:
    """The page of all operators; with ``--only``, each row of the chosen ones."""
    if len(args.only) == len(OPERATORS):
        text = page(compared)
        return Outcome(written={PAGE: text}, shown=(text,))
    return Outcome(shown=tuple(
        f"{row['kernel_name']} {row['kernel_operation_mode']} {row['x_value']} {row['timestamp'][:10]} "
        f"{float(row['y_value_50']):.5f} {mib:.5f} {mib - float(row['y_value_50']):+.5f}" for row, mib in compared))


def _is_quick(row: dict[str, str]) -> bool:
    return row["kernel_name"] != "fused_moe" or (row["x_name"] == "T" and float(row["x_value"]) <= MOST_TOKENS)


def _predicted(row: dict[str, str]) -> float:
    config = json.loads(row["extra_benchmark_config_str"])
    gpu = gpus.find("h100-pcie-80gb" if "PCIe" in row["gpu_name"] else "h100-80gb")
    return peak_mib(row["kernel_name"], int(float(row["x_value"])), config, row["kernel_operation_mode"], gpu)


def peak_mib(name: str, x: int, config: dict, mode: str, gpu: gpus.Gpu) -> float:
    """Largest sum of live bytes during the last of :data:`CALLS` calls, in MiB."""
    tracer = Tracer(lambda: ("", False))
    tracer.moment = Moment.FORWARD

    def backward(tensors, gradients=None, inputs=None, retain_graph=False) -> None:
        tracer.moment = Moment.BACKWARD
        if inputs is None:
            torch.autograd.backward(tensors, gradients, retain_graph=retain_graph)
        else:
            torch.autograd.grad(tensors, inputs, gradients, retain_graph=retain_graph)
        tracer.moment = Moment.FORWARD

    gc.collect()
    gc.disable()
    try:
        with as_on_cuda("cudnn"), tracer, torch.device("meta"):
            call = OPERATORS[name](x, config, mode, backward)
            for _ in range(CALLS):
                first = len(tracer.recording.events)
                call()
            recording = tracer.closed()
    finally:
        gc.enable()
    sizes = np.array([buffer.size if isinstance(buffer.size, int)
                      else int(workspaces.FUNCTIONS[buffer.size[0]](gpu, *buffer.size[1]))
                      for buffer in recording.buffers], dtype=np.int64)
    sizes = -(-sizes // MIN_BLOCK) * MIN_BLOCK
    events = np.array(recording.events)
    live = np.cumsum(np.sign(events) * sizes[np.abs(events) - 1])
    return float(live[first - 1:].max()) / 2**20


_LEFT = ("whole tensors, so probably of earlier calls of the process: only kto_loss and distill_jsd_loss come after a "
         "call that torch.compile made")
EXPLAINED = {
    "fused_moe": "which tokens go to which expert is drawn by chance, here and there",
    "fused_neighborhood_attention": "1 MiB too much in nearly every row: the size of cuBLASLt's workspace, which "
                                    "PyTorch 2.11 keeps and that of the time perhaps did not",
    "kto_loss": "measured 756.24 MiB more, whatever the batch (three weights and biases of a head, 4 MiB and 9 KiB), "
                f"on other days two weights, a bias, 8 MiB and 18 KiB besides: {_LEFT}. What a larger batch adds fits",
    "distill_jsd_loss": "measured on 2024-12-03 with a draft; rebuilt is what was published on 2025-01-31. The draft "
                        "had two fp32 tensors of the logits' size more. 5,064.03 MiB lay there whatever the batch (ten "
                        f"weights of the student and 54 MiB): {_LEFT}",
}
"""Operator -> the reason why its prediction differs."""


def _steps(compared) -> float:
    """Largest error of the difference between neighbouring rows of one run. Memory that stays throughout cancels."""
    runs = defaultdict(list)
    for row, mib, _ in compared:
        runs[row["extra_benchmark_config_str"], row["kernel_operation_mode"], row["timestamp"], row["x_name"]].append(
            (float(row["x_value"]), float(row["y_value_50"]), mib))
    errors = []
    for rows in runs.values():
        rows.sort()
        errors += [abs((after[2] - before[2]) / (after[1] - before[1]) - 1)
                   for before, after in zip(rows, rows[1:], strict=False) if after[1] != before[1]]
    return max(errors, default=0.0)


def page(compared) -> str:
    """The table of all operators as Markdown."""
    groups = defaultdict(list)
    for row, mib in compared:
        groups[row["kernel_name"]].append((row, mib, mib / float(row["y_value_50"]) - 1))
    lines = [HEAD, "| operator | measured | rows | MiB measured | median error | worst error | worst error of steps "
             "| remark |", "|---|---|---|---|---|---|---|---|"]
    for name, rows in groups.items():
        measured = [float(row["y_value_50"]) for row, _, _ in rows]
        dates = sorted({row["timestamp"][:7] for row, _, _ in rows})
        worst = max((error for *_, error in rows), key=abs)
        lines.append(f"| {name} | {' and '.join(dates)} | {len(rows)} | "
                     f"{min(measured):,.2f} to {max(measured):,.2f} | "
                     f"{statistics.median(abs(error) for *_, error in rows):.4%} | {worst:+.4%} | "
                     f"{_steps(rows):.4%} | {EXPLAINED.get(name, '')} |")
    errors = [abs(error) for rows in groups.values() for *_, error in rows]
    lines += ["", f"{len(errors)} rows of {len(groups)} operators: median error {statistics.median(errors):.4%}, "
              f"{sum(error <= 0.005 for error in errors)} within 0.5 %, worst {max(errors):.2%}.", ""]
    return "\n".join(lines)


HEAD = """# Other people's measurements on H100s

Peak of allocated memory of plain PyTorch operators, as Liger-Kernel's benchmarks measured it on real H100s (PCIe, SXM
and NVL; 2024 to 2026; versions of PyTorch unknown), beside the tracer's sum for the same calls on meta tensors. Nothing
was tuned to these numbers. The error of steps is that of the difference between neighbouring rows of one run; of
`fused_moe` only rows of up to 512 tokens were compared. Made by `scripts/check.py liger_h100`, with the operators of
`calibrate/checks/liger_operators.py`.

Source: linkedin/Liger-Kernel, `benchmark/data/all_benchmark_data.csv` and its history, commit
ead96b618e5c67bddc6a6e9bcb99bfe6b5ab661c, BSD-2-Clause, copyright LinkedIn; providers `torch` and `huggingface`, metric
`memory` (median over ten calls of `max_memory_allocated()`).
"""
