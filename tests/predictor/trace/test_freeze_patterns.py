"""Inputs that layers keep for backward, against other people's measurements of freeze patterns.

Source: plutonium-239/memsave_torch, experiments/visual_abstract/gathered, commit 154f88c432c3c7db404d1e96aaad421f168b503a
(MIT, copyright 2024 Samarth Bhatia): peak memory of a forward on a CPU in MiB, ten equal layers with activations of 512
MiB, the input among them. Interpreter and parameters are the same for each pattern, so what a pattern adds is compared.
"""

import pytest
import torch
from torch import nn

from predictor.events.events import Moment
from predictor.trace.tracer import Tracer

LAYERS, ACTIVATION_MIB, NOISE_MIB = 10, 512, 6
MEASURED = {  # layer, mode: MiB where nothing trains, all layers, the fourth alone, the fourth and later
    ("linear", "train"): (1730.1, 5826.6, 2242.4, 4802.4),
    ("linear", "eval"): (1730.1, 5826.0, 2241.9, 4801.8),
    ("conv2d", "train"): (2239.6, 6335.6, 5312.3, 5311.4),
    ("conv2d", "eval"): (2239.4, 6335.4, 5311.7, 5311.3),
    ("bn2d", "train"): (1725.1, 5821.8, 4795.7, 4792.6),
    ("bn2d", "eval"): (1724.4, 5821.7, 4795.1, 4793.6),
}
PATTERNS = {"all": lambda layer: True, "fourth": lambda layer: layer == 3, "fourth and later": lambda layer: layer >= 3}
MADE = {"linear": (lambda: nn.Linear(64, 64), (1024, 64)), "conv2d": (lambda: nn.Conv2d(8, 8, 3, padding=1), (2, 8, 64, 64)),
        "bn2d": (lambda: nn.BatchNorm2d(8), (2, 8, 64, 64))}


def activations_at_peak(kind: str, mode: str, trains) -> int:
    make, shape = MADE[kind]
    with torch.device("meta"):
        layers, source = [make().train(mode == "train") for _ in range(LAYERS)], torch.empty(shape)
    for index, layer in enumerate(layers):
        layer.requires_grad_(trains(index))
    tracer = Tracer(lambda: ("", False))
    tracer.moment = Moment.FORWARD
    with tracer:
        tracer.watch(source, "input")
        states = source
        for layer in layers:
            states = layer(states)
    recording = tracer.closed()
    live = peak = 0
    for event in recording.events:
        if recording.buffers[abs(event) - 1].size == source.nbytes:
            live += 1 if event > 0 else -1
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize(("kind", "mode"), MEASURED)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_freeze_pattern_keeps_as_many_activations_as_were_measured(kind, mode, pattern):
    nothing, *others = MEASURED[kind, mode]
    measured = others[list(PATTERNS).index(pattern)] - nothing
    kept = activations_at_peak(kind, mode, PATTERNS[pattern]) - activations_at_peak(kind, mode, lambda layer: False)
    assert kept * ACTIVATION_MIB == pytest.approx(measured, abs=NOISE_MIB)
