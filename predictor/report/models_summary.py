"""Renders the short list of known models and the short page of a model: at most 40 lines of 100 characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from predictor.answer.model_list import Known
from predictor.answer.model_page import Layer, Page
from predictor.report import models as whole
from predictor.report.layers import put_together
from predictor.report.layout import details_line, on_one_screen, print_wrapped, shortened, table
from predictor.report.models import amount
from predictor.report.table import peak_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SIZES = ((9, 5), (9, 3), (6, 3), (5, 0), (4, 0), (3, 0), (2, 0))
"""Layers and weights of a page, the most that fit."""
UNBROKEN = "\N{NO-BREAK SPACE}"
"""Keeps a name and its parameters in one line."""
OTHER_COLUMNS = 64
"""Characters of the tables of layers and of weights beside the path."""


def overview(console: Console, known: Mapping[str, Known]) -> None:
    """Prints the names one after another, with parameters, for each combination of modalities."""
    for takes in dict.fromkeys((whole.MULTIMODAL, *(model.takes for model in known.values()))):
        names = [f"{name} {amount(model.parameters, 1)}".replace(" ", UNBROKEN) if model.parameters else name
                 for name, model in known.items() if model.takes == takes]
        console.print(" and ".join(takes), style="bold")
        print_wrapped(console, ", ".join(names))
        console.print()
    print_wrapped(console, "Beside each name stand its parameters. peakcast models NAME shows one model.",
                  details_line("architectures", "parameters by module", "tokens of a picture"))


def report(console: Console, page: Page) -> None:
    """Prints the modules, the largest layers and weights, the tokens of pictures, and a training step's factors."""
    def sized(console: Console, size: tuple[int, int]) -> None:
        whole.head(console, page)
        tables = [whole.modules(page), _layers(page, size[0], console.width - OTHER_COLUMNS)]
        if size[1]:
            tables.append(whole.weights(page, size[1], console.width - OTHER_COLUMNS))
        for part in tables:
            console.print()
            console.print(part)
        console.print()
        print_wrapped(console, *filter(None, [_tokens(page)]), whole.step(page))
        console.print()
        if page.step is not None:
            console.print(peak_table(page.step, console.width, small=False))
            console.print()
        print_wrapped(console, details_line("all layers", "the largest weights", "notes"))

    on_one_screen(console, sized, SIZES)


def _layers(page: Page, most: int, room: int) -> Table:
    """The layers with most parameters, in the model's order, and what the others have together."""
    rows = table("layers", "", "each", "together")
    rows.columns[2].justify = rows.columns[3].justify = "right"
    kept = sorted(page.layers, key=_parameters, reverse=True)[:most]
    for layer in (layer for layer in page.layers if layer in kept):
        count = max(1, len(layer.numbers))
        kind = f"{count} x {layer.kind}" if count > 1 else layer.kind
        rows.add_row(shortened(put_together(layer.path, layer.numbers), room), kind, amount(layer.parameters),
                     amount(_parameters(layer)))
    rest = [layer for layer in page.layers if layer not in kept]
    if rest:
        rows.add_row(f"{len(rest)} more (--details)", "", "", amount(sum(map(_parameters, rest))))
    return rows


def _parameters(layer: Layer) -> int:
    return max(1, len(layer.numbers)) * layer.parameters


def _tokens(page: Page) -> str:
    """What pictures become; empty for a model without."""
    sizes = ", ".join(f"{size} {'refused' if tokens is None else f'{tokens:,}'}"
                      for size, tokens in page.tokens_per_image.items())
    return whole.tokens_sentence(page) or (f"Tokens of a picture (height x width): {sizes}." if sizes else "")
