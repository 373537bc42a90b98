"""Random weights of a dry run: mostly zeros, and the random generator is where it would be."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.dryrun.dryrun import Streams, dryrun
from calibrate.dryrun.hooks import mersenne_twister, random_weights
from tests.calibrate.small_jobs import needs_emulator


@given(st.integers(0, 2**32), st.integers(624, 2000), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_generator_that_skips_is_one_that_draws(seed, before, draws):
    skips, draw = (torch.Generator().manual_seed(seed) for _ in range(2))
    for generator, words in ((skips, before), (draw, before + draws)):
        torch.empty(words, dtype=torch.uint8).random_(generator=generator)
    mersenne_twister.skip(skips, draws)
    assert torch.equal(*(torch.rand(2000, generator=generator) for generator in (skips, draw)))


@pytest.mark.parametrize("fill", ["normal_", "uniform_"])
@pytest.mark.parametrize("dtype", random_weights.DTYPES, ids=str)
def test_a_parameter_begins_as_in_pytorch_and_so_does_what_is_drawn_after_it(fill, dtype):
    ours, theirs = (torch.Generator().manual_seed(7) for _ in range(2))
    function = getattr(torch.Tensor, fill)
    for rows in (1024, 1040):
        parameter = torch.nn.Parameter(torch.empty(rows, 1024, dtype=dtype), requires_grad=False)
        assert random_weights._mostly_zeros(function)(parameter, -1, 2, generator=ours) is parameter
        expected = function(torch.empty(rows, 1024, dtype=dtype), -1, 2, generator=theirs)
        assert torch.equal(parameter[0], expected[0]) and not parameter[1:].any()
        assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("tensor", [
    torch.nn.Parameter(torch.zeros(1024, 1023)), torch.nn.Parameter(torch.zeros(1025, 1025), requires_grad=False),
    torch.zeros(1024, 1024), torch.nn.Parameter(torch.zeros(1024, 1024), requires_grad=False).t(),
    torch.nn.Parameter(torch.zeros(1024, 1024, dtype=torch.float64), requires_grad=False)],
    ids=["small", "odd", "tensor", "transposed", "float64"])
def test_all_else_is_drawn_in_full(tensor):
    with torch.no_grad():
        torch.manual_seed(0)
        expected = tensor.clone().normal_()
        torch.manual_seed(0)
        assert torch.equal(random_weights._mostly_zeros(torch.Tensor.normal_)(tensor), expected)


@pytest.mark.parametrize("make", [torch.empty, lambda *shape: torch.nn.Parameter(torch.empty(*shape))],
                         ids=["tensor", "parameter"])
def test_a_truncated_normal_weight_begins_as_in_pytorch_and_so_does_what_is_drawn_after_it(make):
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch.nn.init, "_no_grad_trunc_normal_"), (torch.nn.Parameter, "normal_"),
                            (torch.nn.Parameter, "uniform_")):
            patch.setattr(owner, name, getattr(owner, name))
        drawn = []
        for begin in (lambda: None, random_weights.start):
            begin()
            torch.manual_seed(7)
            weight = torch.nn.init.trunc_normal_(make(1024, 1040), std=0.02, a=-0.06, b=0.06).detach()
            drawn.append((weight, torch.rand(9)))
    (theirs, after), (ours, after_ours) = drawn
    assert torch.equal(ours.view(-1)[:1024], theirs.view(-1)[:1024]) and not ours.view(-1)[1024:].any()
    assert torch.equal(after_ours, after)


def test_a_parameter_that_may_not_be_written_is_refused_as_in_pytorch():
    with pytest.raises(RuntimeError, match="leaf Variable"):
        random_weights._mostly_zeros(torch.Tensor.normal_)(torch.nn.Parameter(torch.zeros(1024, 1024)))


@needs_emulator
def test_a_script_draws_the_same_after_its_model_as_without_a_dry_run(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent("""
        import sys, torch
        torch.manual_seed(3)
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1040) for _ in range(3)), torch.nn.Embedding(2048, 512))
        open(sys.argv[1], "w").write(f"{torch.randperm(1000).tolist()} {int(model[2].weight.count_nonzero())}")
        model.to("cuda")
    """))
    subprocess.run([sys.executable, str(path), str(tmp_path / "alone")], env=os.environ)  # it may have no GPU
    assert dryrun([sys.executable, str(path), str(tmp_path / "ours")], streams=Streams(subprocess.DEVNULL)).exit_code == 0
    alone, ours = ((tmp_path / name).read_text().rpartition(" ") for name in ("alone", "ours"))
    assert ours[0] == alone[0] and ours[2] == str(random_weights.DRAWN) != alone[2]
