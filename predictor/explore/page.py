"""The page itself: one HTML file with its styles, its script and its data inside."""

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
"""What the page may load: nothing but itself. A browser that knows the policy refuses the rest."""
COMPUTING = ("workspaces", "allocator", "shapes", "runs", "predict")
"""Scripts without a document: what a test runs too."""
SCRIPTS = (*COMPUTING, "draw", "page")


def page(made: Content) -> str:
    """The whole document; the same content gives the same bytes."""
    parts = {
        "policy": POLICY, "title": markup(f"GPU memory of training {made.document['model']}"),
        "style": styles() + _text("page.css"), "script": script(SCRIPTS),
        "content": base64.b64encode(gzip.compress(_packed(made), mtime=0)).decode()}
    text = _text("page.html")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def script(names: tuple[str, ...]) -> str:
    """Scripts, one after another."""
    return "".join(_text(f"{name}.js") for name in names)


def _packed(made: Content) -> bytes:
    """Length of the JSON (4 bytes, little-endian), the JSON, the columns."""
    document = json.dumps(made.document, separators=(",", ":")).encode()
    return struct.pack("<I", len(document)) + document + made.columns


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
