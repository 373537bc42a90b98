"""Checks by hand: jobs and what is said of them, beside measurements; ``registry.CHECKS`` has all of them."""
