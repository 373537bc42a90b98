"""The style sheet that all HTML pages share: text, tables and colours, for light and dark mode."""

from __future__ import annotations

from pathlib import Path


def styles() -> str:
    """The shared style sheet. A page's own styles follow it."""
    return (Path(__file__).parent / "styles.css").read_text(encoding="utf-8")
