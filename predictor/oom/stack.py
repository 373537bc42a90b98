"""Reads the Python traceback before an out-of-memory message: where in the program, and in which moment of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.events.events import Moment

NEAREST = 12
"""The last frame of a traceback stands at most so many lines before its message (source lines, markers, notes)."""
MOST_LINES = 4_000
"""Limit on the lines of a traceback."""


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Place:
    """Where a message came from.

    Attributes:
        moment: the moment of the step; None if no frame tells.
        within: what the moment was a part of: recomputation of checkpointed activations, generation, evaluation.
        inside: the innermost frame, below ``innermost``, of PyTorch's own functions that users know: those of
            ``torch.nn.functional``, ``torch.nn.modules``, ``torch.nn.utils`` and ``torch.optim``; None if there is
            none.
        innermost: the innermost frame outside of PyTorch itself and the emulated GPU; None if there is none.
        own: the innermost frame of a file that is neither an installed package nor the emulated GPU; None if there is
            none.
    """

    moment: Moment | None
    within: str
    innermost: Frame | None
    own: Frame | None
    inside: Frame | None = None

    @property
    def loss(self) -> str:
        """The loss function that ran; empty if none did."""
        return self.inside.function if self.inside is not None and _is_loss(self.inside) else ""


_FRAMES = (
    re.compile(r'\s*File "([^"\n]{1,1000})", line (\d{1,9}), in (\S.{0,200})'),  # Python
    re.compile(r"\s*File ([^\s:]{1,1000}):(\d{1,9}), in ([\w.<>]{1,200})\("),  # IPython 8
)
_BEGINS = "Traceback (most recent call last)"
_FUNCTIONAL = re.compile(r"/torch/nn/functional\.py$")
_LOSS = re.compile(r"cross_entropy|binary_cross_entropy\w*|\w+_loss|kl_div")
_KNOWN = re.compile(r"/torch/(?:nn/functional|nn/utils/\w+|nn/modules/(?!module\.py)\w+|"
                    r"optim/(?!optimizer\.py)\w+)\.py$")
"""Files of the functions of PyTorch that users call by name; ``module.py`` and ``optimizer.py`` only call them."""
_MOMENTS = (  # the innermost frame that matches one of these tells the moment: file, function
    (Moment.OPTIMIZER_STEP, re.compile(r"/(?:torch/optim|bitsandbytes/optim|apex/optimizers)/[^/]+\.py$"
                                       r"|/accelerate/optimizer\.py$|/deepspeed/(?:runtime|ops)/.*\.py$"),
     re.compile(r"step|_take_model_step|_optimizer_step|_init_group|_multi_tensor_\w+|_fused_\w+|_single_tensor_\w+")),
    (Moment.OPTIMIZER_STEP, re.compile(r"/torch/optim/optimizer\.py$"), re.compile("wrapper|_use_grad")),
    (Moment.FORWARD, _FUNCTIONAL, _LOSS),
    (Moment.BACKWARD, re.compile(r"/torch/(?:autograd/(?:__init__|graph)|_tensor)\.py$|/deepspeed/.*\.py$"
                                 r"|/accelerate/accelerator\.py$"),
     re.compile(r"backward|grad|_engine_run_backward")),
    (Moment.INIT, re.compile(r"/torch/nn/modules/module\.py$"),
     re.compile(r"_apply|to|cuda|convert|half|float|bfloat16")),
    (Moment.INIT, re.compile(r"/transformers/modeling_utils\.py$|/deepspeed/__init__\.py$"),
     re.compile(r"(?:\w+\.)?(?:from_pretrained|_load_pretrained_model|initialize)")),
    (Moment.INIT, re.compile(r"/torch/nn/parallel/distributed\.py$|/torch/distributed/fsdp/.*\.py$"
                             r"|/deepspeed/runtime/(?:engine|zero/[^/]+)\.py$"), re.compile(r"__init__|fully_shard")),
    (Moment.FORWARD, re.compile(r"/torch/nn/modules/module\.py$"),
     re.compile(r"_call_impl|_wrapped_call_impl|__call__")),
)
_WITHIN = (
    ("generation", re.compile(r"/transformers/generation/.*\.py$"), re.compile(r"generate|_sample|_beam_search")),
    ("evaluation", re.compile(r"/transformers/trainer[^/]*\.py$"),
     re.compile(r"evaluate|evaluation_loop|prediction_loop|prediction_step")),
)
RECOMPUTATION = "recomputation of checkpointed activations"
_CHECKPOINT = re.compile(r"/(?:torch/utils/checkpoint|deepspeed/runtime/activation_checkpointing/\w+)\.py$")
EMULATOR = r"/calibrate/(?:emulator|dryrun)/\w[\w/]*\.py$"
"""Files of peakcast between the user's code and PyTorch's on an emulated GPU, installed or in a checkout."""
_TORCH = re.compile(rf"/(?:site-packages|dist-packages)/torch/|{EMULATOR}|^<")
_INSTALLED = re.compile(rf"/(?:site-packages|dist-packages)/|/lib/python3[^/]*/|{EMULATOR}|^<")


def place_of(lines: Sequence[str], index: int, after: int = -1) -> Place | None:
    """The place that the traceback before line ``index`` tells; None if there is none right before it.

    Args:
        after: line of the message before; -1 if there is none. The traceback begins after it.
    """
    frames: list[Frame] = []  # innermost first
    for distance in range(1, min(index - after - 1, MOST_LINES) + 1):
        line = lines[index - distance]
        frame = _frame(line)
        if frame is not None:
            frames.append(frame)
        elif line.lstrip().startswith(_BEGINS) or not frames and distance > NEAREST:
            break
    return _place(frames) if frames else None


def _frame(line: str) -> Frame | None:
    for pattern in _FRAMES:
        match = pattern.match(line)
        if match:
            return Frame(match[1], int(match[2]), match[3].rstrip())
    return None


def _place(frames: Sequence[Frame]) -> Place:
    at = next((number for number, frame in enumerate(frames) if _moment(frame) is not None), len(frames))
    around = frames[at:]
    moment = _moment(around[0]) if around else None
    within = next((name for name, file, function in _WITHIN
                   if any(file.search(f.file) and function.fullmatch(f.function) for f in frames)), "")
    if moment is Moment.FORWARD and any(_moment(frame) is Moment.BACKWARD for frame in around):
        moment = Moment.BACKWARD
        within = RECOMPUTATION if any(_CHECKPOINT.search(frame.file) for frame in frames) else within
    below = next((number for number, frame in enumerate(frames) if not _TORCH.search(frame.file)), len(frames))
    return Place(moment, within, next(iter(frames[below:]), None),
                 next((frame for frame in frames if not _INSTALLED.search(frame.file)), None),
                 next((frame for frame in frames[:below] if _KNOWN.search(frame.file)), None))


def _moment(frame: Frame) -> Moment | None:
    return next((moment for moment, file, function in _MOMENTS
                 if file.search(frame.file) and function.fullmatch(frame.function)), None)


def _is_loss(frame: Frame) -> bool:
    return bool(_FUNCTIONAL.search(frame.file) and _LOSS.fullmatch(frame.function))
