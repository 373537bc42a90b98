#!/usr/bin/env python3
"""Write profiles/pages/support.md: which features were compared with which engines, precisions, recipes and models.

    python scripts/build_support_matrix.py

Needs no GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from predictor.workload import support_matrix  # noqa: E402

PAGE = ROOT / "profiles/pages/support.md"

if __name__ == "__main__":
    PAGE.write_text(support_matrix.page())
    print(f"wrote {PAGE}")
