"""The operators that stand for allocations of TRL's loss.

``predictor.trace.trl_loss`` defines them, and calls them in the functions that are named here.
"""

from __future__ import annotations

from predictor.trace.operators.call import Call, nbytes


def tile(call: Call) -> None:
    """The buffer of logits of ``_LogProbabilities``."""
    call.results(call.out[0], size=("trl_tile", (len(call.args[0]), call.out[0].element_size())))


def rows(call: Call) -> None:
    """The hidden states of :func:`_rows`."""
    states, _, tiles = call.args
    call.results(call.out[0], size=("trl_rows", (len(states), states.shape[1], call.out[0].element_size(), tiles)))


def words(call: Call) -> None:
    """The rows of a weight of :func:`_words`."""
    states, _, _, tiles = call.args
    call.results(call.out[0], size=("trl_words", (len(states), nbytes(call.out[0]), tiles)))


def multiply(call: Call) -> None:
    """A product into a tile: its library's workspace."""
    call.lasting_workspace("cublas_workspace")
