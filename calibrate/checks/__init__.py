"""Checks that are run by hand: predictions, plans and readers compared with measured jobs or with real packages.

``registry.CHECKS`` lists all of them; ``python scripts/check.py NAME`` runs one.

Known limitations:

- Most measurements are from the emulated H100. Only ``device`` measures on a real GPU; ``gemma_report`` and
  ``liger_h100`` use measurements that other people published.
- The emulated GPU has no CUDA context, no NCCL buffers and no library workspaces of its own, so these checks compare
  PyTorch's counters only.
- A job that has a row in the results file is not measured again, whatever release measured it. Delete its row to
  measure it again.
- The page checks (``explore_page``, ``report_page``) need Chromium and look at Chromium only.
- ``recovery`` keeps the rows of its campaign only with ``--measurements``, so it has no ``--table-only``.
"""
