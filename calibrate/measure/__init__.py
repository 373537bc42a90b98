"""Measures a workload in a process of its own."""
