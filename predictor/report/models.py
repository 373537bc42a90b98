"""Renders the list of known models and a model's page, as tables for a terminal and as JSON data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from predictor.answer.model_list import STATED, Known
from predictor.answer.model_page import Layer, Page, Weight
from predictor.common.json_dataclasses import to_plain
from predictor.common.value_types import thaw
from predictor.report import table as predicted
from predictor.report.layers import put_together
from predictor.report.layout import print_wrapped, shortened, table
from predictor.report.units import share, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SIZE = "x".join(map(str, STATED))
MULTIMODAL = ("images", "text")
LEGEND = (f"tokens: number of tokens for a picture of {SIZE}; *: the model resizes every picture to one size, which "
          "its page names; cross: images reach the language model by cross-attention.")


def overview(console: Console, known: Mapping[str, Known]) -> None:
    """Prints a table for each combination of modalities, with a row for each known model."""
    for takes in dict.fromkeys((MULTIMODAL, *(model.takes for model in known.values()))):
        group = {name: model for name, model in known.items() if model.takes == takes}
        console.print(_multimodal(group) if takes == MULTIMODAL else _plain(group, " and ".join(takes)))
        console.print()
    print_wrapped(console, LEGEND, "peakcast models NAME shows one model.")


def _multimodal(known: Mapping[str, Known]) -> Table:
    rows = table("images and text", "architecture", "all", "vision\ntower", "projector", "language\nmodel", "tokens",
                 numbers=True)
    rows.columns[1].justify = "left"
    for name, model in known.items():
        modules = model.modules
        language = sum(size for module, size in modules.items() if module not in ("vision_tower", "projector"))
        sizes = model.parameters, modules.get("vision_tower", 0), modules.get("projector", 0), language
        rows.add_row(name, model.model_type, *(amount(size, 1) if size else "" for size in sizes),
                     _image_tokens(model))
    return rows


def _plain(known: Mapping[str, Known], modalities: str) -> Table:
    rows = table(modalities, "architecture", "parameters")
    rows.columns[2].justify = "right"
    for name, model in known.items():
        rows.add_row(name, model.architecture, amount(model.parameters) if model.parameters else "")
    return rows


def _image_tokens(model: Known) -> str:
    if model.cross_attention:
        return "cross"
    return ", ".join(f"{tokens:,}{'' if size == SIZE else ' *'}" for size, tokens in model.tokens_per_image.items())


def amount(number: int, digits: int = 2) -> str:
    """``6.74 B``, ``20.98 M``, ``4.10 K`` or ``576``."""
    for unit, scale in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= scale:
            return f"{number / scale:,.{digits}f} {unit}"
    return str(number)


def report(console: Console, page: Page) -> None:
    """Prints the whole page of a model."""
    head(console, page)
    for part in (modules(page), _layers(page), _tokens(page), weights(page)):
        if part is not None:
            console.print()
            console.print(part)
    console.print()
    print_wrapped(console, step(page))
    if page.step is not None:
        console.print()
        predicted.factors(console, page.step)


def head(console: Console, page: Page) -> None:
    """Prints the model's name, class and size, and what it takes."""
    known, size = page.known, sum(module.bytes for module in page.modules)
    print_wrapped(console, f"{page.name}: {known.architecture} ({known.model_type}), {known.parameters:,} parameters, "
                           f"{size_text(size)} in {page.dtype}; a sample has {' and '.join(known.takes)}")


def modules(page: Page) -> Table:
    """A table with a row for each modality module."""
    rows = table("module", "parameters", "%", "trains", "bytes", numbers=True)
    whole = sum(module.parameters for module in page.modules)
    for module in page.modules:
        rows.add_row(module.name, f"{module.parameters:,}", share(module.parameters, whole),
                     f"{module.trainable:,}", size_text(module.bytes))
    return rows


def _layers(page: Page) -> Table:
    rows = table("layers", "", "each", "together")
    rows.columns[2].justify = rows.columns[3].justify = "right"
    for layer in page.layers:
        count = max(1, len(layer.numbers))
        rows.add_row(put_together(layer.path, layer.numbers), f"{count} x {layer.kind}" if count > 1 else layer.kind,
                     amount(layer.parameters), amount(count * layer.parameters))
    return rows


def _tokens(page: Page) -> Table | str | None:
    if sentence := tokens_sentence(page):
        return sentence
    if not page.tokens_per_image:
        return None
    rows = table("picture (height x width)", "tokens", numbers=True)
    for size, tokens in page.tokens_per_image.items():
        rows.add_row(size, "refused by its processor" if tokens is None else f"{tokens:,}")
    return rows


def tokens_sentence(page: Page) -> str:
    """What a picture becomes, for a model that treats all alike; empty for others."""
    if page.known.cross_attention:
        return "Images reach the language model by cross-attention; each takes only one marker token in the text."
    if page.image_size and page.tokens_per_image:
        return f"An image becomes {[*page.tokens_per_image.values()][-1]} tokens: the model resizes every picture to " \
               f"{page.image_size}x{page.image_size}."
    return ""


def weights(page: Page, most: int | None = None, room: int | None = None) -> Table:
    """A table of the largest parameters.

    Args:
        most: number of rows; None: all that the page has.
        room: characters of a path; None: all that it has.
    """
    rows = table("largest weights", "shape", "each", "together")
    rows.columns[2].justify = rows.columns[3].justify = "right"
    for weight in page.weights[:most]:
        path = put_together(weight.path, weight.numbers).removesuffix(".weight")
        rows.add_row(shortened(path, room or len(path)), " x ".join(map(str, weight.shape)), size_text(weight.bytes),
                     size_text(max(1, len(weight.numbers)) * weight.bytes))
    return rows


def step(page: Page) -> str:
    """The sentence above the factors of a training step's peak, or why it was not predicted."""
    if page.step is None:
        return f"No training step was predicted: {page.why_not}."
    keys = ("recipe", "per_device_train_batch_size", "images_per_sample", "sequence_length", "image_size", "optim",
            "gradient_checkpointing")
    values = ", ".join(f"{key} {str(value).lower()}" for key in keys
                       if (value := page.step.workload.get(key)) is not None)
    chosen = f" ({' and '.join(page.chosen)} chosen here)" if page.chosen else ""
    return f"Where the memory goes in a training step, {size_text(page.step.peak_allocated_bytes)} at its peak: " \
           f"{values}{chosen}. Options of peakcast predict change it."


def document(page: Page) -> dict[str, Any]:
    """A model's page as JSON data. ``training_step`` is the JSON of ``peakcast predict``, or null."""
    def rows(groups: Sequence[Layer | Weight]) -> list[dict[str, Any]]:
        return [{**to_plain(group), "path": put_together(group.path, group.numbers),
                 "count": max(1, len(group.numbers))} for group in groups]

    return {"name": page.name, **to_plain(page.known), "dtype": page.dtype, "image_size": page.image_size,
            "modules": to_plain(page.modules), "layers": rows(page.layers),
            "tokens_per_image": page.tokens_per_image, "largest_weights": rows(page.weights),
            "chosen": thaw(page.chosen), "training_step": page.step.to_json() if page.step else None,
            "not_predicted": page.why_not or None}
