"""Gates: the contents of their file, and the thresholds that break."""

import sys

import pytest

from calibrate.regression import gates
from calibrate.regression.gates import Gate, check
from predictor.common.errors import InputError
from tests.calibrate.regression_cases import case, compared


def read(tmp_path, text: str):
    path = tmp_path / "gates.toml"
    path.write_text(text)
    return gates.read(path)


def broken(limits, comparisons=None, where=()) -> tuple[str, ...]:
    return check(Gate("g", dict(where), limits), [compared()] if comparisons is None else comparisons).broken


def off(by: int, sequence: int = 1024):
    """Requested bytes predicted so much above 1000."""
    return compared(case(sequence, sizes=(1000, 1000, 1000, None)), (1000 + by, 1000, 1000, None))


def test_a_gate_is_read(tmp_path):
    [gate] = read(tmp_path, '[[gate]]\nname = "full"\nwhere = {recipe = "full", data_parallel_size = 8}\n'
                            "allocated_mape = 0.005\nminimum_cases = 100")
    assert gate == Gate("full", {"recipe": "full", "data_parallel_size": 8},
                        {"allocated_mape": 0.005, "minimum_cases": 100})


@pytest.mark.parametrize("text, message", [
    ('[[gate]]\nname = "a"\nallocated_mpae = 1', 'unknown key "allocated_mpae" .did you mean "allocated_mape"'),
    ('[[gates]]\nname = "a"', 'unknown key "gates" .did you mean "gate"'),
    ('[[gate]]\nname = "a"\nwhere = {recipes = "full"}\nfalse_fits = 0', 'where: unknown key "recipes" .did you mean "recipe"'),
    ('[[gate]]\nname = "a"\nwhere = {recipe = 3}\nfalse_fits = 0', "where: recipe must be text, not 3"),
    ('[[gate]]\nname = "a"\nwhere = {data_parallel_size = "8"}\nfalse_fits = 0', "must be a whole number"),
    ('[[gate]]\nname = "a"\nwhere = 3\nfalse_fits = 0', "where must be a table"),
    ('[[gate]]\nname = "a"\nfalse_fits = 0.5', "false_fits must be a whole number from 0, not 0.5"),
    ('[[gate]]\nname = "a"\nallocated_mape = -1', "allocated_mape must be a number from 0, not -1"),
    ('[[gate]]\nname = "a"\nallocated_mape = 50', "allocated_mape is 50: give a fraction, 0.005 for 0.5 %"),
    ('[[gate]]\nname = "a"\nallocated_mape = nan', "allocated_mape must be a number from 0, not nan"),
    ('[[gate]]\nname = "a"\nallocated_mape = true', "allocated_mape must be a number from 0, not True"),
    ('[[gate]]\nname = "a"', "gate 1: limits nothing"),
    ("[[gate]]\nfalse_fits = 0", "gate 1: needs a name"),
    ('[[gate]]\nname = "a"\nfalse_fits = 0\n[[gate]]\nname = "a"\nfalse_fits = 0', 'two gates have the name "a"'),
    ('[[gate]]\nname = "a"\nfalse_fits = 0\n' + ''.join(f'[[gate]]\nname = "{n}"\nfalse_fits = 0\n' for n in range(20_000))
     + '[[gate]]\nname = "a"\nfalse_fits = 0', 'two gates have the name "a"'),
    ("a" + ".a" * 100_000 + " = 1", "has a line of more than 1,000 characters"),
    ("", "has no gates"), ("gate = 3", "has no gates"), ("gate = [", "not valid TOML"),
])
def test_a_file_that_makes_no_sense_is_bad_input(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="no such file: check the path of the gates"):
        gates.read(tmp_path / "none.toml")


def test_an_error_at_the_limit_passes():
    assert broken({"requested_worst": 0.01}, [off(10)]) == ()


def test_an_error_beyond_the_limit_breaks_the_gate_and_names_the_case():
    [line] = broken({"requested_worst": 0.01}, [off(-11)])
    assert line == f"g: requested_worst is 0.011: must be at most 0.01 ({case().id}: {case().name})"


def test_the_mean_counts_errors_of_either_sign():
    assert broken({"requested_mape": 0.009}, [off(10), off(-10, 2048)]) == (
        "g: requested_mape is 0.01: must be at most 0.009",)


def test_the_bias_is_limited_in_size():
    assert broken({"requested_bias": 0.005}, [off(10), off(-10, 2048)]) == ()
    assert len(broken({"requested_bias": 0.005}, [off(-10)])) == 1


def test_a_share_must_be_at_least_its_limit():
    assert broken({"requested_close": 0.5}, [off(0), off(20, 2048)]) == ()
    assert broken({"requested_close": 0.6}, [off(0), off(20, 2048)]) == (
        "g: requested_close is 0.5: must be at least 0.6",)


def test_a_false_fit_is_counted():
    died = compared(case(survived=False))
    [line] = broken({"false_fits": 0}, [died])
    assert line.startswith(f"g: false_fits is 1: must be at most 0 ({died.case.id}: ")


def test_a_peak_in_another_moment_is_counted():
    assert len(broken({"other_moments": 0}, [compared(moment="forward")])) == 1


def test_too_few_cases_break_a_gate():
    assert broken({"minimum_cases": 2}) == ("g: minimum_cases is 1: must be at least 2",)


def test_too_few_models_break_a_gate():
    other = compared(case(keys={"model": "llava-1.5-13b"}))
    assert broken({"minimum_models": 2}, [compared(), other]) == ()
    assert len(broken({"minimum_models": 2}, [compared(), compared(case(2048))])) == 1


def test_a_gate_looks_at_its_own_cases_only():
    assert broken({"requested_worst": 0}, [off(10)], {"recipe": "full"}) == ("g: no case",)
    assert broken({"requested_worst": 0}, [off(10), compared(case(keys={"recipe": "full"}))], {"recipe": "full"}) == ()


@pytest.mark.parametrize("where", [{"file": "made.jsonl"}, {"completion": "immediate"}, {"engine": "torch"},
                                   {"gpu": "h100-80gb", "measured_on": "emulated", "data_parallel_size": 1}])
def test_cases_are_chosen_by_label_completion_and_file(where):
    assert check(Gate("g", where, {"false_fits": 0}), [compared()]).cases == 1


def test_a_counter_that_no_case_has_breaks_its_gate():
    assert broken({"device_mape": 0.1}) == ("g: device_mape: no case has it",)


def test_before_python_311_tomli_reads_the_file(tmp_path, monkeypatch):
    class Tomli:
        TOMLDecodeError = ValueError

        @staticmethod
        def loads(text):
            return {"gate": [{"name": text, "false_fits": 0}]}

    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", Tomli)
    assert read(tmp_path, "the text")[0].name == "the text"


def test_without_tomli_it_is_named(tmp_path, monkeypatch):
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="--gate needs tomli on Python 3.10: .* -m pip install"):
        read(tmp_path, "")
