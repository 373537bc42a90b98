"""Other people's methods: closed forms on LLaVA-1.5-7B, and jobs that they cannot estimate."""

import json
import subprocess
import sys

import pytest

from calibrate.regression.baselines import BASELINES, Estimate, estimates
from calibrate.regression.baselines.equation_1 import factors, kept
from calibrate.regression.baselines.grid import OURS, grid
from calibrate.regression.baselines.model_under_test import single, subject
from predictor.common.errors import InputError
from predictor.common.installing import pip_install
from predictor.events.events import Factor
from predictor.workload.workload import Workload
from tests.calibrate.regression_cases import case, compared
from tests.calibrate.small_jobs import ROOT
from tests.predictor.small import small_config

FROZEN = 303_507_456  # the vision tower
TRAINED = 6_759_919_616  # language model, head and projector
ALL = FROZEN + TRAINED
PROJECTOR = (1024 + 1) * 4096 + (4096 + 1) * 4096
BATCH, SEQUENCE, HIDDEN, VOCABULARY, LAYERS, HEAD = 16, 1024, 4096, 32_064, 32, 128
PATCHES, VISION = 576, 1024


def llava(**changes) -> Workload:
    """LLaVA-1.5-7B, 16 samples of 1,024 tokens, ZeRO-2 over 8 GPUs."""
    return Workload(**{"model": "llava-1.5-7b", "sequence_length": SEQUENCE, "per_device_train_batch_size": BATCH,
                       "zero_stage": 2, "data_parallel_size": 8} | changes)


pytestmark = pytest.mark.usefixtures("formula_cache")


def said(name: str, workload: Workload) -> int:
    return BASELINES[name].estimate(workload).bytes


def small(directory, **changes) -> Workload:
    """A tiny LLaVA whose parameters outweigh its activations, plain PyTorch."""
    path = directory / "config.json"
    path.write_text(json.dumps(small_config(intermediate_size=2048)))
    return Workload(**{"model": str(path), "sequence_length": 16} | changes)


# The paper's Eq. 1

def test_eq1_shares_states_by_stage():
    workloads = {stage: llava(zero_stage=stage) for stage in (1, 2, 3)}
    shared = {stage: factors(subject(w), w) for stage, w in workloads.items()}
    assert [(f[Factor.PARAMETERS], f[Factor.GRADIENTS], f[Factor.OPTIMIZER_STATES]) for f in shared.values()] == [
        (2 * ALL, 2 * TRAINED, 12 * TRAINED // 8),
        (2 * ALL, 2 * TRAINED // 8, 12 * TRAINED // 8),
        (2 * ALL // 8, 2 * TRAINED // 8, 12 * TRAINED // 8)]


@pytest.mark.parametrize("engine", [{}, {"engine": "ddp", "data_parallel_size": 8},
                                    {"engine": "ddp", "ddp": {"gradient_as_bucket_view": True}}])
def test_eq1_without_zero_has_moments_as_wide_as_the_parameters(engine):
    workload = llava(zero_stage=None, **{"data_parallel_size": 1} | engine)
    found = factors(subject(workload), workload)
    assert (found[Factor.GRADIENTS], found[Factor.OPTIMIZER_STATES]) == (2 * TRAINED, 4 * TRAINED)


def test_eq1_is_the_sum_of_its_factors():
    workload = llava()
    assert said("equation_1", workload) == sum(factors(subject(workload), workload).values())


def test_eq1_keeps_of_the_projector_its_input_and_two_outputs():
    # linear 1 [images * patches, vision -> hidden], gelu, linear 2, bf16
    assert kept(subject(llava()), {"projection"}) == BATCH * PATCHES * (VISION + 2 * HIDDEN) * 2


def test_eq1_keeps_of_a_checkpointed_language_model_the_inputs_of_its_layers():
    layers = LAYERS * HIDDEN * 2
    norm = HIDDEN * (4 + 2 + 2) + 4  # fp32 copy, its normalised copy, the product; rsqrt
    loss = VOCABULARY * 4 + 8  # log-softmax in fp32, shifted labels
    a_token, a_position = layers + norm + loss + 1, 2 * HEAD * 2 + 8  # the mask of image tokens; cosine, sine, position
    found = kept(subject(llava()), {"language"})
    assert found == BATCH * SEQUENCE * a_token + SEQUENCE * a_position + 2 * 4  # the loss and its weight


def test_eq1_has_no_activations_of_a_frozen_language_model():
    workload = llava(recipe="pretrain")
    asked = subject(workload)
    assert factors(asked, workload)[Factor.ACTIVATIONS] == kept(asked, {"projection"})


# DeepSpeed's estimator

@pytest.mark.parametrize("degree", [1, 2, 8])
@pytest.mark.parametrize("recipe", ["finetune", "pretrain"])
def test_deepspeed_has_20_bytes_a_parameter_18_of_them_shared_whatever_is_frozen(recipe, degree):
    assert said("deepspeed", llava(recipe=recipe, data_parallel_size=degree)) == 2 * ALL + 18 * ALL // degree


def test_deepspeed_is_the_librarys_own_number():
    library = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    _, gpu_bytes = library.estimate_zero2_model_states_mem_needs(ALL, 4, 2, cpu_offload=False)
    assert said("deepspeed", llava()) == gpu_bytes


@pytest.mark.parametrize("engine", [{"zero_stage": 1}, {"zero_stage": 3},
                                    {"engine": "ddp", "zero_stage": None}])
def test_deepspeed_says_nothing_of_other_engines(engine):
    assert BASELINES["deepspeed"].estimate(llava(**engine)) == Estimate(
        None, "the estimator called here is that of ZeRO stage 2")


# accelerate's

def test_accelerate_is_twice_the_fp32_model_without_its_head():
    buffers = (PATCHES + 1) * 8 + 2 * HEAD // 2 * 4  # positions of patches and class; rotary frequencies, twice
    assert said("accelerate", llava()) == 2 * (4 * (ALL - VOCABULARY * HIDDEN) + buffers)


def test_accelerate_does_not_know_batch_recipe_or_degree():
    other = llava(recipe="pretrain", data_parallel_size=1, per_device_train_batch_size=1)
    assert said("accelerate", llava()) == said("accelerate", other)


@pytest.mark.parametrize(("name", "module", "extra"), [
    ("deepspeed", "deepspeed.runtime.zero.stage_1_and_2", "calibrate"),
    ("accelerate", "accelerate.commands.estimate", "calibrate"),
    ("mem_tracker", "transformers", "trace")])
def test_a_library_that_is_missing_is_named_with_its_extra(name, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    assert BASELINES[name].estimate(llava()).why_not.endswith(f"is not installed: {pip_install(f'peakcast[{extra}]')}")


# States only

@pytest.mark.parametrize(("recipe", "trained"), [("finetune", TRAINED), ("pretrain", PROJECTOR)])
def test_states_only_is_2_bytes_a_parameter_and_a_share_of_12(recipe, trained):
    assert said("states_only", llava(recipe=recipe)) == 2 * ALL + 12 * trained // 8


def test_states_only_without_zero_shares_nothing():
    workload = llava(engine="ddp", zero_stage=None)
    assert said("states_only", workload) == 2 * ALL + 12 * TRAINED


# MemTracker

def test_mem_tracker_sees_parameters_gradients_moments_and_the_foreach_copy(tmp_path):
    workload = small(tmp_path, optim="adamw_torch")
    asked = subject(workload)
    trained = [p for p in asked.facts.parameters if p.trainable]
    inputs = 2 * 16 * 8 + 3 * 28 * 28 * 2  # ids and labels, pixels
    buffers = sum(p.bytes for p in asked.facts.parameters if p.buffer)
    states = 2 * asked.parameters + (2 + 4 + 2) * asked.trainable + 4 * len(trained)
    assert abs(said("mem_tracker", workload) - states - inputs - buffers) < 1024


def test_mem_tracker_is_of_one_process(tmp_path):
    alone = small(tmp_path)
    assert single(alone) == single(small(tmp_path, zero_stage=2, data_parallel_size=8, rank=7, gpu="h100-80gb"))


def test_mem_tracker_runs_only_when_asked_for():
    assert list(estimates(llava())) == [key for key in BASELINES if key != "mem_tracker"]


def test_mem_tracker_that_stops_says_why(tmp_path, monkeypatch):
    from torch.distributed._tools.mem_tracker import MemTracker

    def stop(*_):
        raise RuntimeError("no such\nthing")

    monkeypatch.setattr(MemTracker, "track_external", stop)
    found = BASELINES["mem_tracker"].estimate(small(tmp_path, sequence_length=17))
    assert found == Estimate(None, "MemTracker cannot run this model: RuntimeError: no such thing")


# All of them

def test_a_model_that_is_not_there_is_a_reason_and_no_error(tmp_path):
    workload = llava(model=str(tmp_path / "nowhere"))
    assert {estimate.bytes for estimate in estimates(workload, slow=True).values()} == {None}


def test_a_sequence_without_room_for_its_image_is_refused():
    with pytest.raises(InputError, match="no room"):
        subject(llava(sequence_length=100))


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = ("import sys; from calibrate.regression.baselines import BASELINES; "
            "sys.exit(any(name in sys.modules for name in ('torch', 'deepspeed', 'accelerate', 'transformers')))")
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_grid_puts_measured_predicted_and_estimates_side_by_side():
    one = compared(case(sizes=(100, 200, 300, None)), (100, 202, 300, None))
    made = grid([one], lambda _: {"states_only": Estimate(100), "deepspeed": Estimate(None, "why")})
    assert {key: errors and (errors.cases, errors.mape, errors.bias) for key, errors in made.errors.items()} == {
        OURS: (1, 0.01, 0.01), "states_only": (1, 0.5, -0.5), "deepspeed": None}
    assert [(row.measured_bytes, row.predicted_bytes) for row in made.rows] == [(200, 202)]


def test_grid_leaves_out_what_ran_out_of_memory():
    assert grid([compared(case(survived=False))], lambda _: {}).rows == ()
