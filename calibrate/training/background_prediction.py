"""Predicts the user's job before it runs, in a separate process.

The prediction traces the model with transformers' code, which a training process has already changed: DeepSpeed,
Liger, autocast and peft patch its classes. A separate process also cannot touch the GPU, the random numbers or the
memory of the training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from calibrate import child
from calibrate.records.record import Predicted
from predictor.common.errors import InputError
from predictor.common.json_dataclasses import from_plain, to_plain
from predictor.common.suggestions import quoted
from predictor.workload.workload import Workload

LIMIT_SECONDS = 600
ANSWER = "PEAKCAST "
"""Prefix of the output line that holds the answer. Libraries print other lines."""
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
                  "TORCHELASTIC_RUN_ID", "PEAKCAST_DRYRUN")
"""Environment variables that would make the process a rank of the job."""


@dataclass(frozen=True)
class Question:
    """The request to predict one workload.

    Attributes:
        workload: keys of the workload. ``predicted`` of the answer is for its ``rank``.
        worst: whether ``line``, ``text`` and ``advice`` are for the worst rank instead.
    """

    workload: Mapping[str, Any]
    worst: bool = False


@dataclass(frozen=True)
class Answer:
    """The prediction of one workload.

    Attributes:
        verdict: ``fits``, ``uncertain`` or ``does_not_fit``; None if the capacity is unknown.
        line: the verdict and the peak, in one line.
        text: the report that ``peakcast predict`` prints.
        advice: sentences about changes that would fit; empty if the job fits.
        predicted: peaks of the workload's own rank, for the record.
    """

    verdict: str | None
    line: str
    text: str
    advice: tuple[str, ...]
    predicted: Predicted


def ask(question: Question) -> Answer:
    """Starts the process and waits for its answer, at most :data:`LIMIT_SECONDS`.

    Raises:
        InputError: the workload cannot be predicted (with the predictor's message), or the process failed.
    """
    environment = {name: value for name, value in os.environ.items()
                   if name not in RANK_VARIABLES and not name.startswith("ACCELERATE_")}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        started = child.python("calibrate.training.background_prediction", variables=environment)
        process = subprocess.run(**started, text=True, input=json.dumps(to_plain(question)), capture_output=True,
                                 timeout=LIMIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"the predicting process did not answer: {quoted(str(error), 200)[1:-1]}") from None
    for line in process.stdout.splitlines():
        if line.startswith(ANSWER):
            document = json.loads(line.removeprefix(ANSWER))
            if "input_error" in document:
                raise InputError(document["input_error"])
            return from_plain(Answer, document, "the prediction")
    last_line = (process.stderr.strip().splitlines() or ["no output on stderr"])[-1]
    raise InputError(f"the predicting process failed: {quoted(last_line, 300)[1:-1]}")


def answer(question: Question) -> Answer:
    """The answer of :func:`ask`, computed in this process.

    Raises:
        InputError: as :func:`predictor.predict`.
    """
    import io

    from calibrate.measure import job_prediction
    from predictor.answer.predict import predict
    from predictor.answer.remedies import with_remedies
    from predictor.report import remedies, table, verdict
    from predictor.report.console import WIDTH, console

    workload = Workload.from_mapping(dict(question.workload))
    reported = workload.replace(rank="worst") if question.worst else workload
    prediction = with_remedies(predict(reported), reported, trace=True)
    stream = io.StringIO()
    table.report(console(stream, WIDTH), prediction)
    line = f"{verdict.verdict(prediction)} {verdict.peak_text(prediction.peak)} ({verdict.title(prediction)})"
    rank = cast(int, workload.rank)  # the watcher always sets the training's own rank
    return Answer(
        verdict=prediction.verdict, line=line, text=stream.getvalue(),
        advice=tuple(remedies.short(prediction.remedies)),
        predicted=job_prediction.predict_requested(workload, rank))


def main() -> None:
    """Reads the question from stdin and prints the answer."""
    document = json.load(sys.stdin)
    try:
        reply = to_plain(answer(Question(**document)))
    except InputError as error:
        reply = {"input_error": str(error)}
    print(ANSWER + json.dumps(reply), flush=True)
    os._exit(0)  # libraries hang while the interpreter shuts down


if __name__ == "__main__":
    main()
