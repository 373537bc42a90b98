"""Elements of SVG drawings as text. Every drawing of peakcast is made of these; what is drawn is decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from predictor.common.safe_text import markup
from predictor.report.units import GIB

GREY, FAINT, LIMIT = "#555555", "#dddddd", "#d00000"
"""Colours of notes, of grids, and of a GPU's limit."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000")
"""Colours of series for readers with colour blindness (Okabe and Ito)."""
Attribute = str | float | None


def element(name: str, content: str = "", /, **attributes: Attribute) -> str:
    """One element.

    Args:
        content: what is in it, as SVG; text from outside must be escaped.
        attributes: an underscore stands for a hyphen, and ``style`` for ``class``; None and "" are left out.
    """
    said = "".join(f' {"class" if key == "style" else key.replace("_", "-")}="{_value(value)}"'
                   for key, value in attributes.items() if value not in (None, ""))
    return f"<{name}{said}>{content}</{name}>" if content else f"<{name}{said}/>"


def text(x: float, y: float, words: str, **attributes: Attribute) -> str:
    """One line of text, escaped."""
    return element("text", markup(words), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: Attribute) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def path(data: str, title: str = "", **attributes: Attribute) -> str:
    """A path; ``title`` shows while the pointer is over it."""
    return element("path", named(title), d=data, **attributes)


def box(x: float, y: float, width: float, height: float, title: str = "", **attributes: Attribute) -> str:
    """A rectangle; ``title`` is as for :func:`path`."""
    return element("rect", named(title), x=x, y=y, width=width, height=height, **attributes)


def through(points: Iterable[tuple[float, float]]) -> str:
    """The data of a path along straight lines from point to point."""
    return "M" + " L".join(f"{_value(x)},{_value(y)}" for x, y in points)


def named(title: str) -> str:
    """A title, which shows while the pointer is over the element that contains it; nothing without words."""
    return f"<title>{markup(title)}</title>" if title else ""


def gib_axis(most_bytes: float, y: Callable[[float], float], left: float, right: float) -> list[str]:
    """Horizontal lines at round numbers of GiB up to ``most_bytes``, at most nine, with the numbers to their left.

    Args:
        y: the height of a number of bytes.
    """
    most = most_bytes / GIB
    tick = next(step * 10**power for power in range(-3, 7) for step in (1, 2, 5) if most / (step * 10**power) <= 8)
    heights = [(number * tick, y(number * tick * GIB)) for number in range(int(most / tick) + 1)]
    return [part for number, height in heights for part in (
        line(left, height, right, height, stroke=FAINT), text(left - 6, height + 4, f"{number:g}", text_anchor="end"))]


def document(width: int, height: int, title: str, parts: Iterable[str], *, font_size: int = 13) -> str:
    """A file of its own: the parts on a white ground."""
    return _drawing(width, height, [named(title), box(0, 0, width, height, fill="#ffffff"), *parts],
                    xmlns="http://www.w3.org/2000/svg", font_family="sans-serif", font_size=font_size)


def part_of_page(width: int, height: float, parts: Iterable[str], *, title: str, description: str, name: str) -> str:
    """A drawing inside an HTML page, which has its styles and its ground.

    Args:
        title: what it is; screen readers say it, and then the description.
        description: what it shows.
        name: begins the anchors of both.
    """
    texts = [element(kind, markup(words), id=f"{name}-{kind}")
             for kind, words in (("title", title), ("desc", description))]
    return _drawing(width, height, [*texts, *parts], role="img", aria_labelledby=f"{name}-title {name}-desc")


def _drawing(width: int, height: float, parts: Iterable[str], *, xmlns: str | None = None,
             **attributes: Attribute) -> str:
    """An ``svg`` element. A file needs its namespace, ``xmlns``; a page in HTML does not."""
    return element("svg", "\n".join(["", *parts, ""]), xmlns=xmlns, viewBox=f"0 0 {width} {_value(height)}",
                   **attributes) + "\n"


def _value(value: Attribute) -> str:
    """Text as it is; a number without digits that do not matter."""
    return f"{value:g}" if isinstance(value, float) else str(value)
