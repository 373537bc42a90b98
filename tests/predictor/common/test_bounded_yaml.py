"""Small YAML files that expand beyond any memory are rejected; plain aliases and merges are read."""

import pytest

from predictor.common.errors import InputError
from predictor.common.files import parse_yaml
from tests.predictor.bounds import bounded_time


def laughs(times: int) -> str:
    """Lists of nine of the list before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, times)]
    return "\n".join(lines)


def merges(times: int) -> str:
    """Mappings into which nine of the mapping before are merged."""
    lines = ["b0: &b0 {k: v, l: v}"]
    lines += [f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}" for n in range(1, times)]
    return "\n".join(lines)


def chain(times: int) -> str:
    """Lists of the list before: flat to read, deep to walk."""
    return "\n".join(["c0: &c0 [x]", *(f"c{n}: &c{n} [*c{n - 1}]" for n in range(1, times))])


@pytest.mark.parametrize("text, message", [
    (laughs(12), "comes to more than 20,000 values"),
    (merges(30), "comes to more than 20,000 values"),
    ("a: &a " + "x" * 1_000_000 + "\nb: [*a, *a, *a, *a]", "comes to more than 4 MiB"),
    ("a: [" + "x, " * 100_000 + "]", "comes to more than 20,000 values"),
    (chain(150), "nested more than 100 deep"),
    ("a: " + "[" * 5000 + "]" * 5000, "nested more than 100 deep"),
    ("".join(" " * n + "a:\n" for n in range(500)), "nested more than 100 deep"),
    ("a: &a [*a]", "an alias is inside the value that it refers to"),
    ("a: &a {b: [*a]}", "an alias is inside the value that it refers to"),
    ("a: " + ":".join(["59"] * 300_000), "a number is too long"),
    ("a: 0x" + "f" * 10_000, "a number is too long"),
    ("a: " + "9" * 10_000, "a number is too long"),
    ("a: " + "9" * 10_000 + ".5", "a number is too long"),
], ids=["laughs", "merges", "characters", "values", "chain", "flow", "block", "itself", "inside", "sixties", "hex",
        "digits", "float"])
def test_what_grows_beyond_its_bounds_is_refused(text, message):
    with bounded_time(), pytest.raises(InputError, match=message) as caught:
        parse_yaml(text, "x.yaml")
    assert str(caught.value).startswith("x.yaml: ") and len(str(caught.value)) < 200


def test_the_repeated_key_of_many_is_found():
    keys = "".join(f"k{number}: 1\n" for number in range(9_000))
    with bounded_time(), pytest.raises(InputError, match='the key "k8999" is given twice'):
        parse_yaml(keys + "k8999: 2\n", "x.yaml")


def test_aliases_and_merges_of_ordinary_files_are_read():
    assert parse_yaml("a: &a {k: 1}\nb: {<<: *a, l: 2}\nc: [*a, *a]\nd: 0x1F\ne: 5e8\nf: 1:30", "x") == {
        "a": {"k": 1}, "b": {"k": 1, "l": 2}, "c": [{"k": 1}, {"k": 1}], "d": 31, "e": 5e8, "f": 90}
