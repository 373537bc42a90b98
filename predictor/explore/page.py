"""Writes the page: one HTML file that contains its styles, its script and its data."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from pathlib import Path

from predictor.common.safe_text import markup
from predictor.explore.content import Content
from predictor.report.styles import styles

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Content security policy: the page may load nothing but itself."""
COMPUTING = ("workspaces", "allocator", "expandable", "shapes", "runs", "predict", "address", "remedies")
"""Scripts that do not use the browser's document, so that tests can run them too."""
SCRIPTS = (*COMPUTING, "draw", "page")


def page(made: Content) -> str:
    """The HTML document. The same content gives the same bytes."""
    parts = {
        "policy": POLICY, "title": markup(f"GPU memory of training {made.document['model']}"),
        "style": styles() + _text("page.css"), "script": script(SCRIPTS),
        "content": base64.b64encode(gzip.compress(_packed(made), mtime=0)).decode()}
    text = _text("page.html")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def script(names: tuple[str, ...]) -> str:
    """The text of several scripts, one after another."""
    return "".join(_text(f"{name}.js") for name in names)


def _packed(made: Content) -> bytes:
    """The page's data: length of the JSON (4 bytes, little-endian), the JSON, the columns."""
    document = json.dumps(made.document, separators=(",", ":")).encode()
    return struct.pack("<I", len(document)) + document + made.columns


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
