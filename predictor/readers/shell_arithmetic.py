"""Computes a shell's ``$((…))`` and ``$(expr …)`` with plain integers."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
              ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)}
LONGEST = 200


def computed(text: str) -> int | None:
    """The value of an expression of integers, ``+ - * /`` and parentheses; None for anything else."""
    if len(text) > LONGEST or not re.fullmatch(r"[\d\s()+*/-]+", text) or "**" in text or "//" in text:
        return None
    try:
        return _computed(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ArithmeticError, KeyError, ValueError):
        return None


def of_expr(words: Sequence[str]) -> int | None:
    """The output of ``expr`` for words that are each a number, an operator or a parenthesis; None for others."""
    return computed(" ".join(words)) if all(re.fullmatch(r"-?\d+|[-+*/()]", word) for word in words) else None


def _computed(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(node.operand)
    if not isinstance(node, ast.BinOp):
        raise ValueError
    return OPERATIONS[type(node.op)](_computed(node.left), _computed(node.right))
