"""The list of known models and one model's page: as tables for a terminal, and as JSON's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from predictor.answer.model_list import STATED, Known
from predictor.answer.model_page import Page
from predictor.common.json_dataclasses import to_plain
from predictor.common.value_types import thaw
from predictor.report import table as predicted
from predictor.report.layers import put_together
from predictor.report.layout import table, wrapped
from predictor.report.units import share, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SIZE = "x".join(map(str, STATED))
MULTIMODAL = ("images", "text")
LEGEND = (f"tokens: what a picture of {SIZE} becomes; * of the one size that every picture is made, which the model's "
          "page says; cross: the language model looks at images by cross-attention.")


def overview(console: Console, known: Mapping[str, Known]) -> None:
    """A table for each kind of sample, a row a known name."""
    kinds = dict.fromkeys((MULTIMODAL, *(one.takes for one in known.values())))
    for kind in kinds:
        of_kind = {name: one for name, one in known.items() if one.takes == kind}
        console.print(_multimodal(of_kind) if kind == MULTIMODAL else _plain(of_kind, " and ".join(kind)))
        console.print()
    for text in (LEGEND, "peakcast models NAME shows one model."):
        for line in wrapped(console, text, indent=0):
            console.print(line)


def _multimodal(known: Mapping[str, Known]) -> Table:
    rows = table("images and text", "architecture", "all", "vision\ntower", "projector", "language\nmodel", "tokens",
                 numbers=True)
    rows.columns[1].justify = "left"
    for name, one in known.items():
        language = sum(size for module, size in one.modules.items() if module not in ("vision_tower", "projector"))
        sizes = one.parameters, one.modules.get("vision_tower", 0), one.modules.get("projector", 0), language
        rows.add_row(name, one.model_type, *(amount(size, 1) if size else "" for size in sizes), _image_tokens(one))
    return rows


def _plain(known: Mapping[str, Known], kind: str) -> Table:
    rows = table(kind, "architecture", "parameters")
    rows.columns[2].justify = "right"
    for name, one in known.items():
        rows.add_row(name, one.architecture, amount(one.parameters) if one.parameters else "")
    return rows


def _image_tokens(one: Known) -> str:
    if one.cross_attention:
        return "cross"
    return ", ".join(f"{tokens:,}{'' if size == SIZE else ' *'}" for size, tokens in one.tokens_per_image.items())


def amount(number: int, digits: int = 2) -> str:
    """``6.74 B``, ``20.98 M``, ``4.10 K`` or ``576``."""
    for unit, scale in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= scale:
            return f"{number / scale:,.{digits}f} {unit}"
    return str(number)


def report(console: Console, page: Page) -> None:
    """One model's page."""
    known, size = page.known, sum(module.bytes for module in page.modules)
    console.print(f"{page.name}: {known.architecture} ({known.model_type}), {known.parameters:,} parameters, "
                  f"{size_text(size)} in {page.dtype}; a sample has {' and '.join(known.takes)}", soft_wrap=True)
    for part in (_modules(page), _layers(page), _tokens(page), _weights(page)):
        if part is not None:
            console.print()
            console.print(part)
    console.print()
    _step(console, page)


def _modules(page: Page) -> Table:
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
    if page.known.cross_attention:
        return "Images reach the language model by cross-attention; of its tokens only a mark for each is theirs."
    if not page.tokens_per_image:
        return None
    if page.image_size:
        return f"An image is {page.tokens_per_image.popitem()[1]} tokens: every picture is made " \
               f"{page.image_size}x{page.image_size}."
    rows = table("picture (height x width)", "tokens", numbers=True)
    for size, tokens in page.tokens_per_image.items():
        rows.add_row(size, "refused by its processor" if tokens is None else f"{tokens:,}")
    return rows


def _weights(page: Page) -> Table:
    rows = table("largest weights", "shape", "each", "together")
    rows.columns[2].justify = rows.columns[3].justify = "right"
    for one in page.weights:
        rows.add_row(put_together(one.path, one.numbers).removesuffix(".weight"), " x ".join(map(str, one.shape)),
                     size_text(one.bytes), size_text(max(1, len(one.numbers)) * one.bytes))
    return rows


def _step(console: Console, page: Page) -> None:
    """Where the memory goes in a training step."""
    if page.step is None:
        said = f"No training step was predicted: {page.why_not}."
    else:
        keys = ("recipe", "per_device_train_batch_size", "images_per_sample", "sequence_length", "image_size", "optim",
                "gradient_checkpointing")
        shown = ", ".join(f"{key} {str(value).lower()}" for key in keys
                          if (value := page.step.workload.get(key)) is not None)
        picked = f" ({' and '.join(page.chosen)} chosen here)" if page.chosen else ""
        said = f"Where the memory goes in a training step, {size_text(page.step.peak_allocated.bytes)} at its peak: " \
               f"{shown}{picked}. Options of peakcast predict change it."
    for line in wrapped(console, said, indent=0):
        console.print(line)
    if page.step is not None:
        console.print()
        predicted.factors(console, page.step)


def document(page: Page) -> dict[str, Any]:
    """A page as JSON: ``training_step`` is what ``peakcast predict --json`` says, or null."""
    def rows(found) -> list[dict[str, Any]]:
        return [{**to_plain(one), "path": put_together(one.path, one.numbers), "count": max(1, len(one.numbers))}
                for one in found]

    return {"name": page.name, **to_plain(page.known), "dtype": page.dtype, "image_size": page.image_size,
            "modules": to_plain(page.modules), "layers": rows(page.layers),
            "tokens_per_image": page.tokens_per_image, "largest_weights": rows(page.weights),
            "chosen": thaw(page.chosen), "training_step": page.step.to_json() if page.step else None,
            "not_predicted": page.why_not or None}
