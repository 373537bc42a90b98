"""The one exception a user's mistake raises."""


class InputError(Exception):
    """Bad input or environment: one line that says what, where and what to do (exit code 2)."""
