"""Measurements as text."""
