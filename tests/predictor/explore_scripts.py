"""Runs the scripts of an explore page in V8, without a browser."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from py_mini_racer import MiniRacer

from predictor.explore import content, page, settings
from predictor.explore.content import Content
from predictor.workload.workload import Workload

MODEL = "llava-1.5-7b"


class Scripts:
    """An engine that has read them."""

    def __init__(self, made: Content | None = None) -> None:
        self._engine = MiniRacer()
        self._engine.eval('"use strict";' + page.script(page.COMPUTING))
        if made:
            columns = json.dumps(made.columns.decode("latin-1"))
            self._engine.eval(f"const data = open({json.dumps(made.document)}, "
                              f"Uint8Array.from({columns}, character => character.charCodeAt(0)))")

    def __call__(self, function: str, *arguments: Any) -> Any:
        """What ``(…) => …`` gives, both ways as JSON."""
        return json.loads(self._engine.eval(f"JSON.stringify(({function})(...{json.dumps(arguments)}))"))


@lru_cache
def made(**keys: Any) -> Content:
    """A page's content; LLaVA without checkpointing, on any GPU, unless said otherwise."""
    workload = Workload(**{"model": MODEL, "gradient_checkpointing": False, **keys})
    return content.content(settings.find(workload, (1, 4)), [MODEL])


@lru_cache
def scripts() -> Scripts:
    """Of :func:`made`."""
    return Scripts(made())


def of_setting(job: Workload, setting: dict) -> Workload:
    """The workload of a setting in the page of a job."""
    name, _, tensor = setting["engine"].partition("-tp")
    engine = {"zero_stage": int(name[4:])} if name.startswith("zero") else {"engine": name} if name else {}
    workload = job.replace(
        per_device_train_batch_size=setting["batch"], sequence_length=setting["sequence"], images_per_sample=setting["images"] or None,
        data_parallel_size=setting["degree"], gpu=setting["gpu"], gradient_checkpointing=setting["checkpointing"],
        tensor_parallel_size=int(tensor or 1), **engine)
    return workload.replace(profile=settings.profile_of(workload, setting["gpu"]))
