"""Reads YAML with limits on its size after aliases and merges are expanded.

Without limits, aliases let a few lines expand to more values than any memory holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

MOST_VALUES = 20_000
"""Limit on the scalars, lists and mappings of a document. Each counts once for every reference to it. PyYAML composes
some 20,000 in a second."""
MOST_CHARACTERS = 4 << 20
"""Limit on the characters of all scalars, counted in the same way."""
DEEPEST = 100
"""Limit on the levels of nesting."""
LONGEST_NUMBER = 1_000
"""Limit on the characters of one number: Python's time grows with the square, and it prints at most 4,300 digits."""


class TooMuch(Exception):
    """The document exceeds one of the limits. The message says which."""


class _Size(NamedTuple):
    """The size of a node with its aliases expanded."""

    values: int
    characters: int
    depth: int


class _Loader(yaml.SafeLoader):
    """Computes the expanded size of each node before any Python object is made of it."""

    def __init__(self, text: str, check_keys: Callable[[list[Any]], Any]) -> None:
        super().__init__(text)
        self._check_keys = check_keys
        self._level = self._composed = 0
        self._sizes: dict[yaml.Node, _Size] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        alias = self.check_event(yaml.AliasEvent)
        self._level += 1
        self._composed += 1
        _check(self._composed, 0, self._level)
        node = super().compose_node(parent, index)
        assert node is not None  # PyYAML makes a node of every event
        self._level -= 1
        if node not in self._sizes:
            if alias:
                raise TooMuch("an alias is inside the value that it refers to")
            self._sizes[node] = self._size(node)
        return node

    def _size(self, node: yaml.Node) -> _Size:
        if isinstance(node, yaml.ScalarNode):
            return _Size(1, len(node.value), 1)
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        sizes = [self._sizes[part] for part in inner]
        size = _Size(1 + sum(part.values for part in sizes), sum(part.characters for part in sizes),
                     1 + max((part.depth for part in sizes), default=0))
        _check(*size)
        return size

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        self._check_keys([key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        return super().construct_mapping(node, deep)

    def construct_number(self, node: Any) -> int | float:
        if len(node.value) > LONGEST_NUMBER:
            raise TooMuch("not valid YAML: a number is too long")
        return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)


def _check(values: int, characters: int, depth: int) -> None:
    if depth > DEEPEST:
        raise TooMuch(f"is nested more than {DEEPEST} deep")
    if values > MOST_VALUES or characters > MOST_CHARACTERS:
        most = f"{MOST_VALUES:,} values" if values > MOST_VALUES else f"{MOST_CHARACTERS >> 20} MiB"
        raise TooMuch(f"comes to more than {most}, what its aliases refer to counted each time")


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))
for _type in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_type}", _Loader.construct_number)


def load(text: str, check_keys: Callable[[list[Any]], Any]) -> Any:
    """The single YAML document of a text, as plain data.

    Args:
        check_keys: called with the scalar keys of each mapping before the mapping is made.

    Raises:
        TooMuch: the document exceeds one of the limits.
        yaml.YAMLError: the text is not valid YAML.
    """
    loader = _Loader(text, check_keys)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
