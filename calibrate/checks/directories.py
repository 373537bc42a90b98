"""Where checks keep what they find: in the repository, from which they run."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "profiles"
EVIDENCE = PROFILES / "evidence"
"""What was measured, and tables of single checks."""
PAGES = PROFILES / "pages"
"""Tables for readers, made of evidence."""
H100 = PROFILES / "h100-80gb"
"""Measurements that a profile's reports read too."""
