"""``peakcast schema`` and ``peakcast completion``: what editors and shells read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from predictor.answer import schemas
from predictor.cli import main


@pytest.mark.parametrize("of", ["workload", "result"])
def test_a_schema_is_printed_as_json(of, capsys):
    assert main(["schema", of]) == 0
    assert json.loads(capsys.readouterr().out) == getattr(schemas, of)()


def test_a_schema_goes_to_a_file_that_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "workload.schema.json"
    assert main(["schema", "workload", "-o", str(path)]) == 0
    assert main(["schema", "workload", "-o", str(path)]) == 2
    assert json.loads(path.read_text()) == schemas.workload()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words, completed", [
    (["plan", "--zer"], {"--zero-grad", "--zero-stage"}), (["expl"], {"explain", "explore"}),
    (["schema", "wor"], {"workload"}), (["predict", "--gpu", "a100"], {"a100-40gb", "a100-80gb"}),
    (["predict", "--recipe", "l"], {"lora"}), (["predict", "llava-1.5"], {"llava-1.5-7b", "llava-1.5-13b"})])
def test_bash_completes_commands_options_and_values(words, completed, tmp_path, capsys):
    script = tmp_path / "peakcast.bash"
    assert main(["completion", "bash", "-o", str(script)]) == 0
    bash = shutil.which("bash")
    assert bash is not None
    asked = f"source {script}; COMP_WORDS=(peakcast {' '.join(words)}); COMP_CWORD={len(words)}; _shtab_peakcast; " \
            'printf "%s\\n" "${COMPREPLY[@]}"'
    assert set(subprocess.run([bash, "-c", asked], text=True, capture_output=True, check=True).stdout.split()) == completed


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_a_script_that_names_the_commands(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "dryrun" in capsys.readouterr().out


def test_without_shtab_the_message_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'peakcast[completion]'" in capsys.readouterr().err
