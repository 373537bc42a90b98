"""Engines: pure functions from a traced micro-step to the events of a whole run.

One file an engine. ``compose`` holds the pieces that all of them use.
"""
