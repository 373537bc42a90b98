"""Traced events with sizes as polynomials of the shape: fitting, files and the store."""
