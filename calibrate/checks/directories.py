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
