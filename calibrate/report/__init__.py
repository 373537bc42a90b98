"""Reports of measurements, calibrations, dry runs and comparisons: terminal text, JSON, Markdown and HTML."""
