"""A model's page: its modules, layers, tokens per image, largest weights, and the memory of a training step."""

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
from predictor.model.model_config import Modality, ModelConfig
from predictor.workload.workload import Workload

SIZES = ((224, 224), (336, 336), (448, 448), (672, 672), (1024, 1024), (768, 1344))
"""Heights and widths of pictures, for models that take pictures of any size."""
TEXT, ROUND = 256, 512
"""Tokens; the default ``sequence_length`` is the images' tokens plus ``TEXT``, rounded up to multiples of ``ROUND``."""


@dataclass(frozen=True)
class Module:
    """A modality module: its parameter counts in elements, and the bytes of its parameters and buffers."""

    name: str
    parameters: int
    trainable: int
    bytes: int


@dataclass(frozen=True)
class Layer:
    """A module of the model, or several equal modules under one parent.

    Attributes:
        path: dotted path, with ``{}`` in place of the number in which equal modules differ.
        numbers: these numbers; empty for a single module.
        kind: name of the module's class.
        parameters: parameters of each module, in elements.
    """

    path: str
    numbers: tuple[int, ...]
    kind: str
    parameters: int


@dataclass(frozen=True)
class Weight:
    """A parameter, or several equal parameters whose paths differ in one number, in the notation of :class:`Layer`."""

    path: str
    numbers: tuple[int, ...]
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Page:
    """All figures of one model.

    Attributes:
        tokens_per_image: by ``HEIGHTxWIDTH``; None for a size that the model's processor refuses.
        weights: the largest parameters, by the bytes of each.
        chosen: keys of the training step that the user left out and the page chose.
        step: prediction of the training step; None without a prediction.
        why_not: the reason why there is no prediction; empty otherwise.
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
    """Builds a workload's model on the meta device and collects its figures.

    Args:
        step: also predict a training step.
        progress: wraps the list of shapes that must be traced.

    Raises:
        InputError: the model is unknown or cannot be built, or torch or transformers is missing.
    """
    from predictor.formula import learned

    if learned.is_learned_file(workload.model):
        raise InputError(f"model {workload.model}: a learned job is not a model: name a model, or its config.json")
    config = models.find(workload.model)
    check_pictures(workload, config)
    if isinstance(config, CodeModel):
        request = dispatch.resolve(workload.replace(**_chosen(workload, config, 0)))
        request.workload.check_predicted()
        assert request.config is not None  # only a learned formula has no configuration
        config = code_models.at_shape(request.config, request.shape)
    with model_list.building(config):
        model = parser.build(config, attn_implementation="sdpa", recipe=workload.recipe,
                             patterns=parser.Patterns(workload.trainable, workload.frozen),
                             lora=lora.adapters(workload), dtype=workload.dtype,
                             quantization=quantization.quantized(workload))
        known = model_list.built(config, model, *workload.image_sizes)
        tokens = _tokens(config, model, tuple(dict.fromkeys(SIZES + workload.image_sizes)))
        facts = parser.describe(model, max(known.tokens_per_image.values(), default=0))
        layers = tuple(_layers(model))
    chosen, why_not = _chosen(workload, config, facts.tokens_per_image), "it was not asked for"
    predicted: Prediction | None = None
    if step:
        try:
            predicted, why_not = predict(workload.replace(**chosen), progress=progress), ""
        except InputError as error:
            why_not = str(error)
    return Page(config.name, known, workload.dtype, config.image_size, _modules(facts), layers, tokens,
                _weights(facts.parameters), chosen, predicted, why_not)


def _tokens(config: ModelConfig, model: Any, sizes: Sequence[tuple[int, int]]) -> dict[str, int | None]:
    """Tokens per image at each size; None where the processor refuses the size."""
    tokens: dict[str, int | None] = {}
    for size in sizes[:1] if config.image_size else sizes:
        try:
            tokens |= model_list.tokens_of(config, model, size)
        except InputError:
            tokens[f"{size[0]}x{size[1]}"] = None
    return tokens


def _chosen(workload: Workload, config: ModelConfig, tokens_per_image: int) -> dict[str, Any]:
    """Values for the keys that a training step needs and the user left out."""
    chosen: dict[str, Any] = {}
    any_size = config.image_size is None and not isinstance(config, CodeModel)
    if config.kind is Modality.IMAGE_TEXT and any_size and workload.image_size is None:
        chosen["image_size"] = "x".join(map(str, model_list.STATED))
    if config.kind is not Modality.IMAGE and workload.sequence_length is None:
        images = workload.images_per_sample
        images = int(config.kind is Modality.IMAGE_TEXT) if images is None else images
        chosen["sequence_length"] = default_length(images * tokens_per_image)
    return chosen


def default_length(filled: int) -> int:
    """A sequence length for samples whose images fill so many tokens."""
    return -(-(filled + TEXT) // ROUND) * ROUND


def _modules(facts: ModelFacts) -> tuple[Module, ...]:
    parts: dict[str, list[Parameter]] = {}
    for tensor in facts.parameters:
        parts.setdefault(modality(tensor.name), []).append(tensor)
    return tuple(Module(name, sum(elements(tensor) for tensor in tensors if not tensor.buffer),
                        sum(tensor.numel for tensor in tensors if tensor.trainable),
                        sum(tensor.bytes for tensor in tensors))
                 for name, tensors in parts.items())


def elements(tensor: Parameter) -> int:
    """Number of weights in a parameter. A packed 4-bit parameter stores two in each element."""
    return tensor.numel * (2 if tensor.packed else 1)


def _weights(tensors: Sequence[Parameter], most: int = 12) -> tuple[Weight, ...]:
    """The ``most`` largest parameters."""
    groups: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for tensor in tensors:
        if not tensor.buffer:
            path, number = _numbered(tensor.name)
            groups.setdefault((path, tensor.shape, tensor.bytes), []).extend(number)
    weights = [Weight(path, tuple(numbers), shape, size) for (path, shape, size), numbers in groups.items()]
    return tuple(sorted(weights, key=lambda weight: (-weight.bytes, weight.path))[:most])


def _numbered(path: str) -> tuple[str, list[int]]:
    """A path with ``{}`` in place of its first number, and that number in a list."""
    parts = path.split(".")
    place = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    return (path, []) if place is None else (".".join([*parts[:place], "{}", *parts[place + 1:]]), [int(parts[place])])


def _layers(model: Any) -> Iterator[Layer]:
    """Modules from the root down to the lists of layers, in the model's order. Equal layers of a list are one row."""
    own = {name: parameter.numel() for name, parameter in model.named_parameters()}

    def count(path: str) -> int:
        return sum(size for name, size in own.items() if name == path or name.startswith(path + "."))

    def walk(path: str, module: Any) -> Iterator[Layer]:
        prefix = path + "." if path else ""
        direct = [(prefix + name, parameter) for name, parameter in module.named_parameters(recurse=False)]
        yield from (Layer(name, (), "Parameter", own[name]) for name, _ in direct if name in own)
        equal: dict[tuple[str, int], list[str]] = {}
        children = list(module.named_children())
        for name, child in children:
            key = (type(child).__name__, count(prefix + name)) if _is_list(module) else (name, 0)
            equal.setdefault(key, []).append(name)
        for names in equal.values():
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
    """Whether a list in this module holds several modules of the same class and size."""
    for part in module.modules():
        sizes = [(type(child).__name__, sum(parameter.numel() for parameter in child.parameters()))
                 for name, child in part.named_children() if name.isdecimal()]
        if any(size and sizes.count((class_name, size)) > 1 for class_name, size in sizes):
            return True
    return False
