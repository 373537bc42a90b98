"""One model in figures: its modules, layers, tokens per image, largest weights, and a training step of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from predictor.answer import model_list
from predictor.answer.model_list import Known
from predictor.answer.predict import predict
from predictor.answer.prediction import Prediction
from predictor.common.errors import InputError
from predictor.events.model_facts import ModelFacts, Parameter, modality
from predictor.formula.formula_key import check_pictures
from predictor.jobs import dispatch
from predictor.model import code_models, lora, models, parser, quantization
from predictor.model.code_models import CodeModel
from predictor.model.model_config import Kind, ModelConfig
from predictor.workload import compared
from predictor.workload.workload import Workload

SIZES = ((224, 224), (336, 336), (448, 448), (672, 672), (1024, 1024), (768, 1344))
"""Heights and widths of the pictures that a model of any size is asked about."""
TEXT, ROUND = 256, 512
"""A training step that says no ``sequence_length`` has room for its images and so much text, rounded up."""


@dataclass(frozen=True)
class Module:
    """A modality module; elements, and bytes of parameters and buffers."""

    name: str
    parameters: int
    trainable: int
    bytes: int


@dataclass(frozen=True)
class Layer:
    """A module of the model, or several alike under one parent.

    Attributes:
        path: with ``{}`` for what tells them apart.
        numbers: what stands there; empty for a single module.
        parameters: of each.
    """

    path: str
    numbers: tuple[int, ...]
    kind: str
    parameters: int


@dataclass(frozen=True)
class Weight:
    """A parameter, or several alike that differ in one number of their path, as :class:`Layer` has it."""

    path: str
    numbers: tuple[int, ...]
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Page:
    """What is known of a model.

    Attributes:
        tokens_per_image: by ``HEIGHTxWIDTH``; None for a size that its processor refuses.
        weights: the largest, by the bytes of one.
        chosen: keys of the training step that the page chose.
        step: its prediction; None where there is none.
        why_not: why not.
    """

    name: str
    known: Known
    dtype: str
    image_size: int | None
    modules: tuple[Module, ...]
    layers: tuple[Layer, ...]
    tokens_per_image: dict[str, int | None]
    weights: tuple[Weight, ...]
    chosen: dict[str, Any]
    step: Prediction | None
    why_not: str = ""


def page(workload: Workload, *, step: bool = True, progress: Callable | None = None) -> Page:
    """Builds the model of a workload and looks at it.

    Args:
        step: also predict a training step.
        progress: wraps the list of shapes that must be traced.

    Raises:
        InputError: a model that is unknown or cannot be built, or torch or transformers is missing.
    """
    from predictor.formula import learned

    if learned.is_named(workload.model):
        raise InputError(f"model {workload.model}: a learned job is no model: name one, or its config.json")
    config = models.find(workload.model)
    check_pictures(workload, config)
    if isinstance(config, CodeModel):
        request = dispatch.resolve(workload.replace(**_chosen(workload, config, 0)))
        compared.check(request.workload)
        config = code_models.at(request.config, request.shape)
    with model_list.building(config):
        model = parser.build(config, attn_implementation="sdpa", recipe=workload.recipe,
                             patterns=parser.Patterns(workload.trainable, workload.frozen),
                             lora=lora.adapters(workload), dtype=workload.dtype,
                             quantization=quantization.quantized(workload))
        known = model_list.built(config, model, *workload.image_sizes)
        tokens = _tokens(config, model, tuple(dict.fromkeys(SIZES + workload.image_sizes)))
        facts = parser.describe(model, max(known.tokens_per_image.values(), default=0))
        layers = tuple(_layers(model))
    chosen, predicted, why_not = _chosen(workload, config, facts.tokens_per_image), None, "it was not asked for"
    if step:
        try:
            predicted, why_not = predict(workload.replace(**chosen), progress=progress), ""
        except InputError as error:
            why_not = str(error)
    return Page(config.name, known, workload.dtype, config.image_size, _modules(facts), layers, tokens,
                _weights(facts.parameters), chosen, predicted, why_not)


def _tokens(config: ModelConfig, model: Any, sizes: Sequence[tuple[int, int]]) -> dict[str, int | None]:
    """Tokens per image at each size; None where the processor refuses."""
    found: dict[str, int | None] = {}
    for size in sizes[:1] if config.image_size else sizes:
        try:
            found |= model_list.tokens_of(config, model, size)
        except InputError:
            found[f"{size[0]}x{size[1]}"] = None
    return found


def _chosen(workload: Workload, config: ModelConfig, tokens_per_image: int) -> dict[str, Any]:
    """Keys that a training step needs and the user did not give."""
    chosen: dict[str, Any] = {}
    any_size = config.image_size is None and not isinstance(config, CodeModel)
    if config.kind is Kind.IMAGE_TEXT and any_size and workload.image_size is None:
        chosen["image_size"] = "x".join(map(str, model_list.STATED))
    if config.kind is not Kind.IMAGE and workload.sequence_length is None:
        images = workload.images_per_sample
        images = int(config.kind is Kind.IMAGE_TEXT) if images is None else images
        chosen["sequence_length"] = -(-(images * tokens_per_image + TEXT) // ROUND) * ROUND
    return chosen


def _modules(facts: ModelFacts) -> tuple[Module, ...]:
    parts: dict[str, list[Parameter]] = {}
    for tensor in facts.parameters:
        parts.setdefault(modality(tensor.name), []).append(tensor)
    return tuple(Module(name, sum(elements(one) for one in tensors if not one.buffer),
                        sum(one.numel for one in tensors if one.trainable), sum(one.bytes for one in tensors))
                 for name, tensors in parts.items())


def elements(tensor: Parameter) -> int:
    """Weights that a parameter holds."""
    return tensor.numel * (2 if tensor.packed else 1)


def _weights(tensors: Sequence[Parameter], most: int = 12) -> tuple[Weight, ...]:
    """The largest parameters."""
    groups: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for tensor in tensors:
        if not tensor.buffer:
            path, number = _numbered(tensor.name)
            groups.setdefault((path, tensor.shape, tensor.bytes), []).extend(number)
    found = [Weight(path, tuple(numbers), shape, size) for (path, shape, size), numbers in groups.items()]
    return tuple(sorted(found, key=lambda weight: (-weight.bytes, weight.path))[:most])


def _numbered(path: str) -> tuple[str, list[int]]:
    """A path with ``{}`` for its first number, and that number."""
    parts = path.split(".")
    place = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    return (path, []) if place is None else (".".join([*parts[:place], "{}", *parts[place + 1:]]), [int(parts[place])])


def _layers(model: Any) -> Iterator[Layer]:
    """Modules from the top down to the lists of layers, in the model's order; those alike in a list are one."""
    own = {name: parameter.numel() for name, parameter in model.named_parameters()}

    def count(path: str) -> int:
        return sum(size for name, size in own.items() if name == path or name.startswith(path + "."))

    def walk(path: str, module: Any) -> Iterator[Layer]:
        prefix = path + "." if path else ""
        direct = [(prefix + name, parameter) for name, parameter in module.named_parameters(recurse=False)]
        yield from (Layer(name, (), "Parameter", own[name]) for name, _ in direct if name in own)
        alike: dict[tuple[str, int], list[str]] = {}
        children = list(module.named_children())
        for name, child in children:
            key = (type(child).__name__, count(prefix + name)) if _is_list(module) else (name, 0)
            alike.setdefault(key, []).append(name)
        for names in alike.values():
            child = dict(children)[names[0]]
            size = count(prefix + names[0])
            if len(names) > 1 and size:
                yield Layer(prefix + "{}", tuple(map(int, names)), type(child).__name__, size)
            elif size and _has_repeated(child):
                yield from walk(prefix + names[0], child)
            elif size:
                yield Layer(prefix + names[0], (), type(child).__name__, size)

    yield from walk("", model)


def _is_list(module: Any) -> bool:
    return all(name.isdecimal() for name, _ in module.named_children())


def _has_repeated(module: Any) -> bool:
    """Whether some list in it holds several modules of one class and size."""
    for part in module.modules():
        sizes = [(type(child).__name__, sum(parameter.numel() for parameter in child.parameters()))
                 for name, child in part.named_children() if name.isdecimal()]
        if any(size and sizes.count((kind, size)) > 1 for kind, size in sizes):
            return True
    return False
