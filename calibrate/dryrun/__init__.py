"""Runs the user's own script on an emulated GPU."""
