"""Tracebacks before an out-of-memory message: moment, module and the user's own line."""

import pytest

from predictor.events.events import Moment
from predictor.oom.recorded import place as place_in_snapshot
from predictor.oom.stack import RECOMPUTATION, Frame, Place, place_of
from predictor.report.oom import inside_text, place_text

SITE = "/opt/lib/python3.11/site-packages"
MINE, CALL = ("/home/me/train.py", "main"), (f"{SITE}/torch/nn/modules/module.py", "_call_impl")
LAYER = (f"{SITE}/transformers/models/llama/modeling_llama.py", "forward")
BACKWARD = (f"{SITE}/torch/autograd/graph.py", "_engine_run_backward")


def of(*frames: tuple[str, str]) -> Place:
    lines = ["Traceback (most recent call last):"]
    for number, (file, function) in enumerate(frames, start=1):
        lines += [f'  File "{file}", line {number}, in {function}', "    x = y", "        ^"]
    place = place_of([*lines, "torch.OutOfMemoryError: …"], len(lines))
    assert place is not None
    return place


@pytest.mark.parametrize("frames, moment, within", [
    ((MINE, CALL, LAYER), Moment.FORWARD, ""),
    ((MINE, (f"{SITE}/torch/_tensor.py", "backward"), BACKWARD), Moment.BACKWARD, ""),
    ((MINE, BACKWARD, (f"{SITE}/torch/utils/checkpoint.py", "unpack_hook"), CALL, LAYER), Moment.BACKWARD, RECOMPUTATION),
    ((MINE, BACKWARD, (f"{SITE}/flash_attn/flash_attn_interface.py", "backward")), Moment.BACKWARD, ""),
    ((MINE, (f"{SITE}/torch/optim/adamw.py", "step"), (f"{SITE}/torch/optim/adam.py", "_init_group")),
     Moment.OPTIMIZER_STEP, ""),
    ((MINE, (f"{SITE}/deepspeed/runtime/zero/stage_1_and_2.py", "step")), Moment.OPTIMIZER_STEP, ""),
    ((MINE, (f"{SITE}/torch/optim/adamw.py", "step"), ("/home/me/train.py", "closure"), CALL), Moment.FORWARD, ""),
    ((MINE, (f"{SITE}/transformers/generation/utils.py", "generate"), CALL, LAYER), Moment.FORWARD, "generation"),
    ((MINE, (f"{SITE}/transformers/trainer.py", "evaluation_loop"), CALL), Moment.FORWARD, "evaluation"),
    ((MINE, (f"{SITE}/torch/nn/modules/module.py", "to"), (f"{SITE}/torch/nn/modules/module.py", "_apply")), Moment.INIT, ""),
    ((MINE,), None, ""),
])
def test_the_moment_is_that_of_the_innermost_known_function(frames, moment, within):
    place = of(*frames)
    assert (place.moment, place.within, place.own.file) == (moment, within, MINE[0])


def test_the_place_is_the_innermost_frame_outside_of_pytorch():
    place = of(MINE, CALL, LAYER, (f"{SITE}/torch/nn/functional.py", "linear"))
    assert place.innermost == Frame(LAYER[0], 3, "forward") and place.own == Frame(MINE[0], 1, "main")


def test_a_loss_is_a_forward_and_is_named_beside_the_caller():
    place = of((f"{SITE}/transformers/trainer.py", "train"), (f"{SITE}/torch/nn/functional.py", "cross_entropy"))
    assert (place.moment, place.loss, place.innermost.function) == (Moment.FORWARD, "cross_entropy", "train")
    assert place_text(place) == (f"It happened in forward, in the loss (cross_entropy), at {SITE}/transformers/trainer.py:1, "
                                 "train (from the traceback).")


@pytest.mark.parametrize("file, function, said", [
    ("nn/functional", "softmax", "torch.nn.functional (softmax)"), ("nn/modules/linear", "forward", "torch.nn.modules.linear (forward)"),
    ("nn/utils/clip_grad", "clip_grad_norm_", "torch.nn.utils.clip_grad (clip_grad_norm_)"),
    ("optim/adam", "_multi_tensor_adam", "torch.optim.adam (_multi_tensor_adam)")])
def test_the_innermost_well_known_function_of_pytorch_is_named(file, function, said):
    place = of(MINE, CALL, (f"{SITE}/torch/{file}.py", function), (f"{SITE}/torch/_ops.py", "__call__"))
    assert inside_text(place) == said and place.own.file == MINE[0]


def test_a_module_of_pytorch_that_calls_the_user_s_code_is_not_where_it_happened():
    assert of(MINE, (f"{SITE}/torch/nn/modules/container.py", "forward"), CALL, MINE).inside is None


def test_frames_as_ipython_prints_them():
    place = place_of([f"File {SITE}/torch/_tensor.py:581, in Tensor.backward(self)", "    ...", "RuntimeError: …"], 2)
    assert place.innermost is None


@pytest.mark.parametrize("lines", [[], ["step 1"], ["Traceback (most recent call last):"],
                                   ['  File "a.py", line 1, in f', *["log"] * 20]])
def test_without_a_traceback_right_before_it_nothing_is_told(lines):
    assert place_of([*lines, "error"], len(lines)) is None


@pytest.mark.parametrize("root", ["/home/me/peakcast", SITE])
def test_frames_of_the_emulated_gpu_are_not_the_user_s(root):
    emulator = [(f"{root}/calibrate/emulator/host_values.py", "_run"), (f"{root}/calibrate/dryrun/hooks/tags.py", "run")]
    place = of(MINE, (f"{SITE}/torch/_compile.py", "inner"), *emulator, (f"{SITE}/torch/_ops.py", "__call__"))
    assert place.innermost == place.own == Frame(MINE[0], 1, "main")
    stack = [{"filename": file, "line": 1, "name": name} for file, name in (*emulator, MINE)]
    assert place_in_snapshot(stack) == "/home/me/train.py:1 main"


def test_a_package_of_the_user_s_that_is_also_called_calibrate_is_the_user_s():
    mine = "/home/me/calibrate/train.py"
    assert of((mine, "main")).own == Frame(mine, 1, "main")


@pytest.mark.parametrize("node, place", [("AddmmBackward0", "backward: AddmmBackward0"), ("", "backward")])
def test_blocks_of_autograd_s_threads_are_those_of_backward(node, place):
    names = [f"torch::autograd::generated::{node}::apply(std::vector<at::Tensor>&&)"] if node else []
    names += ["torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"]
    python = [(f"{SITE}/torch/_ops.py", "__call__"), ("/home/me/peakcast/calibrate/emulator/host_values.py", "_run")]
    stack = [{"filename": file, "line": 1, "name": name} for file, name in (*python, *(("??", name) for name in names))]
    assert place_in_snapshot(stack) == place
