#!/usr/bin/env python3
"""Write profiles/pages/support.md: the engines, precisions, recipes and models that each feature was compared with.

    python scripts/build_support_matrix.py

Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from predictor.workload import support_matrix  # noqa: E402

PAGE = ROOT / "profiles/pages/support.md"

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(support_matrix.page())
    print(f"wrote {PAGE}")
