"""torch.compile and a script's own kernels in a dry run."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from calibrate.dryrun.dryrun import Streams, dryrun
from predictor.cli import main
from predictor.common.errors import InputError
from tests.calibrate.small_jobs import needs_emulator
from tests.calibrate.trainer import train

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

SOME = """
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    def scaled(x):
        return torch.nn.functional.gelu(x).sum()

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return scaled(x)

    layer, x = torch.nn.Linear(8, 8).cuda(), torch.ones(8, 8, device="cuda", requires_grad=True)
    query = torch.ones(1, 1, 128, 16, device="cuda")
"""


def script(path: Path, text: str) -> list[str]:
    path.write_text(textwrap.dedent(SOME) + textwrap.dedent(text))
    return [sys.executable, str(path)]


@pytest.mark.parametrize("compiles", [
    "torch.compile(layer)(x)", "model = Scaled(); model.compile(); model(x)", "torch.compile(scaled, mode='max-autotune')(x)",
    "@torch.compile\ndef decorated(x):\n    return x * 2\nprint('here')\ndecorated(x)",
    "torch.compile(lambda size: torch.zeros(size, device='cuda') + 1)(4)",
])
def test_what_is_compiled_for_the_gpu_ends_the_dry_run_with_one_sentence(tmp_path, capfd, compiles):
    command = script(tmp_path / "train.py", compiles)
    assert main(["dryrun", "--", *command]) == 2
    said = capfd.readouterr().err
    line = len((tmp_path / "train.py").read_text().splitlines())
    ours = [text for text in said.splitlines() if text.startswith("peakcast")]
    assert len(ours) == 1 and f"train.py:{line}: " in ours[0] and "TORCH_COMPILE_DISABLE=1" in ours[0]
    assert "Traceback" not in said


def test_hugging_faces_trainer_that_compiles_is_refused_and_runs_with_the_variable(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="TORCH_COMPILE_DISABLE=1"):
        train(tmp_path, torch_compile=True)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    assert train(tmp_path, torch_compile=True).peak_requested_bytes == train(tmp_path).peak_requested_bytes


def test_flex_attention_has_advice_of_its_own(tmp_path):
    with pytest.raises(InputError, match="another attention than flex_attention"):
        dryrun(script(tmp_path / "train.py", "torch.compile(flex_attention)(query, query, query)"))


def test_what_is_not_compiled_for_the_gpu_runs(tmp_path):
    found = dryrun(script(tmp_path / "train.py", """
        @torch.compile
        def never_called(x):
            return x * 2

        torch.compile(layer)
        layer.compile()
        for backend in ("eager", "aot_eager"):
            torch.compile(scaled, backend=backend)(x).backward()
        torch.compile(scaled)(torch.ones(4))
    """), streams=Streams(subprocess.DEVNULL))
    assert (found.exit_code, found.processes) == (0, 1)


def test_a_kernel_of_the_scripts_own_is_timed_by_few_runs(tmp_path):
    path = tmp_path / "runs.txt"
    found = dryrun(script(tmp_path / "train.py", f"""
        import triton
        import triton.language as tl

        @triton.jit
        def double(x, count, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(x + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)

        runs = []
        kernel = triton.autotune([triton.Config({{"BLOCK": block}}, pre_hook=runs.append) for block in (16, 32)],
                                 key=["count"])(double)
        kernel[(4,)](x, 64)
        open({str(path)!r}, "w").write(str(len(runs)))
    """), streams=Streams(subprocess.DEVNULL))
    assert found.exit_code == 0
    assert 2 < int(path.read_text()) < 40
