"""The exceptions for a user's mistake, and for a job that is not predicted."""


class InputError(Exception):
    """Wrong input or environment. The message is one line: what is wrong, where, and what to do (exit code 2)."""


class NotPredicted(InputError):
    """A job that may well run, but that no formula and no trace covers: ``peakcast predict --run`` runs it instead."""
