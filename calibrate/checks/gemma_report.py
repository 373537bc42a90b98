"""Compare predictions with published QLoRA peaks of Gemma 2B and 7B on a real GPU (Salisbury's report).

    pip install -e '.[test]'
    python scripts/check.py gemma_report      # a few minutes: each job is traced

The table goes to profiles/pages/gemma_report.md; no GPU is needed, and nothing was tuned to its numbers.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from calibrate.checks.directories import PAGES
from calibrate.checks.outcome import Outcome
from predictor.allocator.allocator import CachingAllocator
from predictor.common import gpus
from predictor.events import workspaces
from predictor.events.composed_run import Run
from predictor.events.events import MOMENTS, Moment
from predictor.jobs import dispatch, survival
from predictor.workload.workload import Workload

PAGE = PAGES / "gemma_report.md"
GPU, TOKENS, VOCABULARY, FP32 = "rtx-3090", 4, 256_000, 4
TARGETS = {"embedding": ("embed_tokens",), "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
           "MLP": ("gate_proj", "up_proj", "down_proj")}
STEP = 2
"""Step that is compared: the first step has no optimizer states yet."""


class Peaks(NamedTuple):
    """Allocated bytes at three moments, under the report's names (explained in ``HEAD``)."""

    C: int
    D: int
    G: int


@dataclass(frozen=True)
class Row:
    """A job of the report's Table I, with the peaks that the report predicted and measured."""

    model: str
    r: int
    adapters: str
    batch: int
    reported_prediction: Peaks
    measured: Peaks


ROWS = (
    Row("gemma-2b", 128, "embedding", 1,
        Peaks(3326757376, 3330724608, 3652933488), Peaks(3259954688, 3262995456, 3454763520)),
    Row("gemma-2b", 128, "MLP", 1,
        Peaks(3892890112, 3896857344, 4596815728), Peaks(3637440000, 3640480768, 4323248640)),
    Row("gemma-2b", 2, "attention", 8,
        Peaks(3226831872, 3226569728, 3339308928), Peaks(3212931072, 3204477952, 3339152896)),
    Row("gemma-2b", 2, "MLP", 8,
        Peaks(3245190144, 3244928000, 3366408064), Peaks(3231289344, 3222836224, 3365534208)),
    Row("gemma-7b", 64, "embedding", 1,
        Peaks(7252210176, 7256161024, 7764124800), Peaks(7249413632, 7250791424, 7695238656)),
    Row("gemma-7b", 64, "attention", 1,
        Peaks(7361425920, 7365376768, 8012506240), Peaks(7388611072, 7389988864, 8032621056)),
    Row("gemma-7b", 2, "attention", 8,
        Peaks(7171085312, 7170692096, 7539089408), Peaks(7287743488, 7279159296, 7669301760)),
    Row("gemma-7b", 2, "MLP", 8,
        Peaks(7207556096, 7207162880, 7590338560), Peaks(7324214272, 7315630080, 7720861184)),
)
HEAD = """# QLoRA on a real GPU: Gemma 2B and 7B

Source: Scott Salisbury, "Predicting Peak VRAM Usage in Local Fine-tuning of Large Language Models" (Ohio State
University, 30 April 2024), Table I, in github.com/BareBeaverBat/local-finetuning-calculator (commit aa35632); the jobs
are those of the repository's two scripts. PyTorch 2.2 or later, bitsandbytes 0.43.1, a GPU of 8 GB that has bf16.
No formula was tuned to these numbers. Made by `scripts/check.py gemma_report`.

Each job: 4-bit nf4 with nested maxima, the other weights fp32 (`prepare_model_for_kbit_training`), rsLoRA,
`paged_adamw_32bit`, reentrant checkpointing, 4 tokens a sample. His peaks are three of our moments:

- **C** is the highest point of the forward pass after the last layer: logits and the loss;
- **D** is the highest of the backward pass before the last layer: gradients of the logits;
- **G** is the highest of the backward pass of the first layer's `down_proj`: its weight is there unpacked twice, in 16
  bits and fp32 (`compute_dtype`: bitsandbytes 0.43 takes the input's dtype, fp32, whatever the configuration says).
  With adapters of r=128 on the MLP that layer's `gate_proj` is higher; the report calls it H and did not measure it.

Predicted are allocated bytes for the versions of this repository, after two corrections that are not peakcast's; that
they are due was concluded from these rows, so the last line has the errors without them too: less the two workspaces
of cuBLAS (2 x {workspace:,} bytes; the report adds up tensors by category and names none), and with the loss of
transformers 4.40 in place of 5.17's, which pads labels in place of cutting logits (`logits[..., :-1,
:].contiguous()`: from 2 n logits at C to one n and two of n - b, none copied for b = 1; from 3 n to 3 (n - b) at D).

What is left at 7B is the same in all rows. Beside the bare sum of tensors in blocks of 512 bytes it is 28 MiB, one for
each layer, to within 0.3 MiB at C: probably rests of blocks that the allocator did not split off (1 MiB and less),
which follow from the order in which weights are loaded; that of 2024 was not run.

| model | r | adapters | batch | peak | measured | the report's own error | predicted | error |
|---|---|---|---|---|---|---|---|---|
"""


def jobs(args: Namespace) -> tuple[Row, ...]:
    return ROWS


def measure(jobs: tuple[Row, ...], args: Namespace) -> list[tuple[Row, Peaks]]:
    """Predicts each job. The measured peaks are the report's."""
    return [(row, peaks(row)) for row in track(jobs, console=Console(stderr=True), transient=True)]


def table(compared: list[tuple[Row, Peaks]], args: Namespace) -> Outcome:
    """The page of measured and predicted peaks."""
    lines, plain, errors, reported_errors = [], [], [], []
    for row, predicted in compared:
        for name, measured, theirs, bare, ours in zip(
                Peaks._fields, row.measured, row.reported_prediction, predicted, corrected(row, predicted)):
            plain.append(bare / measured - 1)
            errors.append(ours / measured - 1)
            reported_errors.append(theirs / measured - 1)
            lines.append(f"| {row.model} | {row.r} | {row.adapters} | {row.batch} | {name} | {measured:,} | "
                         f"{reported_errors[-1]:+.2%} | {ours:,} | {errors[-1]:+.4%} |\n")
    text = HEAD.format(workspace=int(workspaces.cublas_workspace(gpus.find(GPU)))) + "".join(lines) + (
        f"\nMean error {_mean_and_worst(errors)}; without the corrections {_mean_and_worst(plain)}; the report's own "
        f"{_mean_and_worst(reported_errors)}.\n")
    return Outcome(written={PAGE: text}, shown=(text,))


def _mean_and_worst(errors: list[float]) -> str:
    return f"{statistics.fmean(map(abs, errors)):.2%}, worst {max(map(abs, errors)):.2%}"


def peaks(row: Row) -> Peaks:
    """Predicts the three peaks of a job."""
    workload = Workload(model=row.model, sequence_length=TOKENS, per_device_train_batch_size=row.batch, recipe="lora",
                     lora={"r": row.r, "target_modules": list(TARGETS[row.adapters]), "use_rslora": True},
                     quantization={"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
                                   "bnb_4bit_compute_dtype": "fp32", "llm_int8_skip_modules": ["lm_head"]},
                     optim="paged_adamw_32bit", gradient_checkpointing=True,
                     gradient_checkpointing_kwargs={"use_reentrant": True}, gpu=GPU, profile="none")
    job = dispatch.prepare(workload)
    run = job.run(workload.capacity, 0)
    paths = [run.events.names[number] for number in run.events.buffers.module[run.events.buffer].tolist()]
    forward, backward = (np.flatnonzero((run.events.step == STEP) & (run.events.moment == MOMENTS.index(moment)))
                         for moment in (Moment.FORWARD, Moment.BACKWARD))
    live = allocated(run)
    highest = (live[forward[_within(".layers.", paths, forward)[-1] + 1:]].max(),
             live[backward[:_within(".layers.", paths, backward)[0]]].max(),
             live[backward[_within(".layers.0.mlp.down_proj", paths, backward)]].max())
    return Peaks(*map(int, highest))


def corrected(row: Row, predicted: Peaks) -> Peaks:
    """Predicted peaks less the two cuBLAS workspaces, and with the loss of transformers 4.40."""
    both = 2 * int(workspaces.cublas_workspace(gpus.find(GPU)))
    return Peaks(*(peak - both + change for peak, change in zip(predicted, (*_older_loss(row.batch), 0))))


def allocated(run: Run) -> np.ndarray:
    """Allocated bytes of the simulated allocator after each event: whole blocks, with what could not be split off."""
    allocator, allocated_bytes = CachingAllocator(), []

    def kinds() -> Iterator[int]:
        for event_kind in run.events.kind.tolist():
            yield event_kind
            allocated_bytes.append(allocator.allocated_bytes)

    survival.play_on(allocator, run, kinds())
    return np.array(allocated_bytes)


def _within(path: str, paths: list[str], events: np.ndarray) -> np.ndarray:
    """Those indices of ``events`` whose module path contains ``path``."""
    return np.flatnonzero([path in paths[at] for at in events])


def _older_loss(batch: int) -> tuple[int, int]:
    """Bytes that transformers 4.40 allocates beyond those of 5.17, at C and at D."""
    whole, cut = (FP32 * VOCABULARY * batch * tokens for tokens in (TOKENS, TOKENS - 1))
    return (2 if batch > 1 else 1) * cut - whole, 3 * (cut - whole)
