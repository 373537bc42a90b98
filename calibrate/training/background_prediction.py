"""Predicts a job that is about to run, in a process of its own.

A model is traced with transformers' own code, which a training process has changed: DeepSpeed, Liger, autocast and
peft patch classes. A fresh process also cannot touch the GPU, random numbers or memory of the training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrate import child
from calibrate.records.record import Predicted
from predictor.common.errors import InputError
from predictor.common.json_dataclasses import from_plain, to_plain
from predictor.common.suggestions import show
from predictor.workload.workload import Workload

LIMIT_SECONDS = 600
ANSWER = "PEAKCAST "
"""Begins the line that is the answer; libraries print others."""
OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
          "TORCHELASTIC_RUN_ID", "PEAKCAST_DRYRUN")
"""Variables that would make the process one rank of the job."""


@dataclass(frozen=True)
class Question:
    """What is to be predicted.

    Attributes:
        workload: its ``rank`` is the one that ``predicted`` is of.
        worst: whether the text is of the worst rank instead.
    """

    workload: Mapping[str, Any]
    worst: bool = False


@dataclass(frozen=True)
class Answer:
    """What is said of it.

    Attributes:
        verdict: ``fits``, ``uncertain``, ``does_not_fit``, None without a capacity.
        line: whether it fits and where its peak is, in one line.
        text: as ``peakcast predict`` shows it.
        advice: what would fit, each in words; empty where it fits.
        predicted: for the record.
    """

    verdict: str | None
    line: str
    text: str
    advice: tuple[str, ...]
    predicted: Predicted


def ask(question: Question) -> Answer:
    """Start the process and wait for what it says.

    Raises:
        InputError: what cannot be predicted, in the predictor's words; or the process failed.
    """
    environment = {name: value for name, value in os.environ.items()
                   if name not in OTHERS and not name.startswith("ACCELERATE_")}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        started = child.python("calibrate.training.background_prediction", variables=environment)
        process = subprocess.run(**started, text=True, input=json.dumps(to_plain(question)), capture_output=True,
                                 timeout=LIMIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"the predicting process did not answer: {show(str(error), 200)[1:-1]}") from None
    for line in process.stdout.splitlines():
        if line.startswith(ANSWER):
            found = json.loads(line.removeprefix(ANSWER))
            if "input_error" in found:
                raise InputError(found["input_error"])
            return from_plain(Answer, found, "the prediction")
    last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
    raise InputError(f"the predicting process failed: {show(last, 300)[1:-1]}")


def answer(question: Question) -> Answer:
    """What :func:`ask` gives, in this process.

    Raises:
        InputError: as :func:`predictor.predict`.
    """
    import io

    from calibrate.measure import job_prediction
    from calibrate.training import advice
    from predictor.answer.predict import predict
    from predictor.report import table, verdict
    from predictor.report.console import WIDTH, console

    own = Workload.from_mapping(dict(question.workload))
    asked = own.replace(rank="worst") if question.worst else own
    prediction = predict(asked)
    stream = io.StringIO()
    table.report(console(stream, WIDTH), prediction)
    line = f"{verdict.verdict(prediction)} {verdict.peak_text(prediction.peak)} ({verdict.title(prediction)})"
    return Answer(
        verdict=prediction.verdict, line=line,
        text=stream.getvalue(), advice=() if prediction.verdict in (None, "fits") else tuple(advice.what_fits(asked)),
        predicted=job_prediction.predicted(own, own.rank))


def main() -> None:
    """What the process does."""
    document = json.load(sys.stdin)
    try:
        found = to_plain(answer(Question(**document)))
    except InputError as error:
        found = {"input_error": str(error)}
    print(ANSWER + json.dumps(found), flush=True)
    os._exit(0)  # libraries hang in the interpreter's last rites


if __name__ == "__main__":
    main()
