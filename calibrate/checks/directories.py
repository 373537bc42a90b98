"""Directories of the repository in which checks keep measurements and pages."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "profiles"
EVIDENCE = PROFILES / "evidence"
"""Measurements."""
PAGES = PROFILES / "pages"
"""Tables for readers, made from the measurements."""
H100 = PROFILES / "h100-80gb"
"""Measurements that ``peakcast report`` reads too."""


def model_of(name: str) -> str:
    """A model as a workload names it: the path of a configuration beside the checks, or a known name."""
    own = Path(__file__).with_name("configs") / f"{name}.json"
    return str(own) if own.is_file() else name
