"""What all pages look like: words, tables and colours, in light and in dark."""

from __future__ import annotations

from pathlib import Path


def styles() -> str:
    """Styles that a page's own follow."""
    return (Path(__file__).parent / "styles.css").read_text(encoding="utf-8")
