"""A shell's ``$((…))`` and ``$(expr …)`` of plain integers."""

from __future__ import annotations

import ast
import operator
import re

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
              ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)}
LONGEST = 200
EXPR = re.compile(r"\$\(\s*expr((?:\s+(?:\\\*|'\*'|[-+/]|\d+|\$\w+|\$\{\w+\}))+)\s*\)")
"""The command ``expr`` of numbers and variables, whose ``*`` is quoted."""


def inside(expansion: str) -> str | None:
    """What it computes; None for another expansion."""
    if expansion.startswith("$(("):
        return expansion[3:-2]
    found = EXPR.fullmatch(expansion)
    return re.sub(r"[\\']", "", found[1]) if found else None


def computed(text: str) -> int | None:
    """Its value, by ``+ - * /`` and parentheses; None for anything else."""
    if len(text) > LONGEST or not re.fullmatch(r"[\d\s()+*/-]+", text) or "**" in text or "//" in text:
        return None
    try:
        return _computed(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ArithmeticError, KeyError, ValueError):
        return None


def _computed(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(node.operand)
    if not isinstance(node, ast.BinOp):
        raise ValueError
    return OPERATIONS[type(node.op)](_computed(node.left), _computed(node.right))
