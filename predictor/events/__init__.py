"""The words that all steps share: events, sizes as formulas, workspaces, timelines and regimes."""
