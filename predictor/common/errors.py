"""The exception for a user's mistake."""


class InputError(Exception):
    """Wrong input or environment. The message is one line: what is wrong, where, and what to do (exit code 2)."""
