"""Shared basics of all packages: errors, files, safe text, value types and GPUs."""
