"""Injected deviations of an emulated GPU: each shows exactly its bytes, and only where it should."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from calibrate.emulator import Injection, Machine, environment, injection
from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn, read
from predictor.common.errors import InputError
from tests.calibrate.emulator.test_emulator import is_one_clear_line, run_command, run_job
from tests.calibrate.small_jobs import needs_emulator, record, workload

MIB = 2**20

#: One process shows all of it: sizes that no other part of PyTorch asks for.
EVERYTHING = Injection(
    attention_forward_fixed_bytes=1_000_000, attention_forward_bytes_per_element=Fraction(1, 3),
    attention_backward_fixed_bytes=2_000_000, attention_backward_bytes_per_element=Fraction(3, 2),
    convolution_fixed_bytes=3_000_000, convolution_bytes_per_element=5,
    cublas_workspace_config=":2048:3:16:8", cublaslt_workspace_kib=999,
    context_bytes=400_000_000, cublas_bytes=70_000_000, cudnn_bytes=9_000_000, nccl_bytes=1_000_000,
    nccl_bytes_per_rank=3_000, roundup_power2_divisions=4, cuda_malloc_granularity_bytes=32 * MIB,
)  # fmt: skip

SCRIPT = """
import pynvml
import torch.distributed as dist
from torch import nn
from calibrate.emulator.process_group import init_process_group
from tests.predictor.small import facts_of

pynvml.nvmlInit()
torch.cuda.memory._record_memory_history(max_entries=10**6, context=None)
facts = {}

def used():
    free, total = torch.cuda.mem_get_info()
    return total - free

def outside():  # used bytes that are in no segment
    units = [-(-segment["total_size"] // UNIT) * UNIT for segment in torch.cuda.memory_snapshot()]
    return used() - sum(units)

def watch(name, call):  # bytes that the call asked for, bytes that it kept, bytes taken beside PyTorch
    before = len(torch.cuda.memory._snapshot()["device_traces"][0])
    kept, beside = torch.cuda.memory_stats()["requested_bytes.all.current"], outside()
    result = call()
    events = torch.cuda.memory._snapshot()["device_traces"][0][before:]
    facts[name] = {"asked": sum(event["size"] for event in events if event["action"] == "alloc"),
                   "kept": torch.cuda.memory_stats()["requested_bytes.all.current"] - kept,
                   "beside": outside() - beside}
    return result

torch.autograd.set_multithreading_enabled(False)  # a thread of its own may let go of its last tensors late
facts["context"] = used()
queries = torch.empty(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
keys = torch.empty(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16)
attention = torch.ops.aten._scaled_dot_product_cudnn_attention
for name, dropout in (("whole", 0.0), ("spelled", 0.1)):  # cuDNN is asked for one operation, or for its parts
    result = watch(f"{name} forward", lambda: attention(queries, keys, keys, None, True, dropout, False, False)[0])
    gradient = torch.ones_like(result)
    watch(f"{name} backward", lambda: torch.autograd.grad(result, queries, gradient))
convolution = nn.Conv2d(3, 8, 14, stride=14, bias=False, device="cuda", dtype=torch.bfloat16)
pixels = torch.empty(2, 3, 56, 56, device="cuda", dtype=torch.bfloat16, requires_grad=True)
result = watch("convolution", lambda: convolution(pixels))
gradient = torch.ones_like(result)
watch("convolution backward", lambda: torch.autograd.grad(result, (pixels, convolution.weight), gradient))
square = torch.empty(256, 256, device="cuda")
watch("product", lambda: square @ square)
watch("second product", lambda: square @ square)
watch("linear", lambda: nn.functional.linear(square, square, square[0]))
stats = torch.cuda.memory_stats
before = stats()["allocated_bytes.all.current"]
uneven = torch.empty(5 * 2**20 + 1, dtype=torch.uint8, device="cuda")
facts["rounded"] = stats()["allocated_bytes.all.current"] - before
init_process_group(rank=3, world_size=4)
watch("communicator of 4", lambda: dist.all_reduce(square))
pair = dist.new_group([2, 3])
watch("communicator of 2", lambda: dist.all_reduce(square, group=pair))
watch("end", dist.destroy_process_group)
facts["outside"] = outside()
facts["nvml"] = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used - used()
answer(facts)
"""


def facts_of(unit_bytes: int, inject: Injection | None) -> dict:
    return run_job(f"UNIT = {unit_bytes}\n" + SCRIPT, gpu="h100-80gb", inject=inject or Injection())


@pytest.fixture(scope="module")
def ordinary() -> dict:
    return facts_of(2 * MIB, None)


@pytest.fixture(scope="module")
def injected() -> dict:
    return facts_of(32 * MIB, EVERYTHING)


QUERY = RESULT = 2 * 4 * 128 * 64
FORWARD = 1_000_000 + -(-RESULT // 3)  # rounded up
BACKWARD = 2_000_000 + QUERY * 3 // 2
IMAGES, PIXELS, WEIGHT = 2 * 8 * 4 * 4, 2 * 3 * 56 * 56, 8 * 3 * 14 * 14


@needs_emulator
@pytest.mark.parametrize(
    "name, workspace_bytes",
    [
        ("whole forward", FORWARD), ("whole backward", BACKWARD),
        ("spelled forward", FORWARD), ("spelled backward", BACKWARD),
        ("convolution", 3_000_000 + 5 * IMAGES),
        ("convolution backward", 2 * 3_000_000 + 5 * PIXELS + 5 * WEIGHT),
    ],
)  # fmt: skip
def test_a_cudnn_workspace_is_allocated_in_its_operator_and_freed_there(ordinary, injected, name, workspace_bytes):
    assert injected[name]["asked"] - ordinary[name]["asked"] == workspace_bytes
    assert injected[name]["kept"] == ordinary[name]["kept"]


@needs_emulator
def test_cublas_workspaces_are_those_of_the_variables(ordinary, injected):
    result = 256 * 256 * 4
    assert ordinary["product"]["kept"] == result + 32 * MIB  # what PyTorch takes on Hopper
    assert injected["product"]["kept"] == result + 1024 * (2048 * 3 + 16 * 8)
    assert injected["linear"]["asked"] == result + 1024 * 999


@needs_emulator
def test_libraries_take_memory_beside_pytorch_when_first_used(injected):
    taken = {name: fact["beside"] for name, fact in injected.items() if isinstance(fact, dict) and fact["beside"]}
    pair, four = 1_000_000 + 2 * 3_000, 1_000_000 + 4 * 3_000
    assert taken == {"whole forward": 9_000_000, "product": 70_000_000, "communicator of 4": four,
                     "communicator of 2": pair, "end": -four - pair}


@needs_emulator
def test_the_context_is_there_from_the_start_and_to_the_end(injected):
    assert injected["context"] == 400_000_000
    # what is in segments was counted in units of 32 MiB
    assert injected["outside"] == 400_000_000 + 9_000_000 + 70_000_000


@needs_emulator
def test_nvml_shows_what_cudamemgetinfo_shows(injected):
    assert injected["nvml"] == 0


@needs_emulator
def test_blocks_are_rounded_to_quarters_between_powers_of_two(ordinary, injected):
    assert (ordinary["rounded"], injected["rounded"]) == (5 * MIB + 512, 6 * MIB)


@needs_emulator
def test_nothing_is_taken_without_an_injection(ordinary):
    beside = [fact["beside"] for fact in ordinary.values() if isinstance(fact, dict)]
    assert (ordinary["context"], ordinary["outside"], set(beside)) == (0, 0, {0})


@needs_emulator
def test_an_injection_of_nothing_is_none():
    assert environment(Machine(inject=Injection())) == environment()


@needs_emulator
def test_a_measured_job_says_what_was_injected_and_hides_its_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    inject = Injection(context_bytes=400_000_000, cublas_bytes=70_000_000, roundup_power2_divisions=2)
    made = measure(workload(tmp_path), device=MeasuredOn.EMULATED, inject=inject)
    assert Injection.read(made.job.device.injected) == inject
    assert made.job.settings["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:512"
    assert made.job.device_used_bytes == made.peak("reserved_bytes").bytes + 470_000_000


def test_a_real_gpu_is_left_as_it_is(tmp_path):
    with pytest.raises(InputError, match="nothing can be injected into a real GPU"):
        measure(workload(tmp_path), device=MeasuredOn.DEVICE, inject=Injection(context_bytes=1))


def test_a_record_keeps_the_injection_in_its_file(tmp_path):
    job = record().job
    made = record(job=replace(job, device=replace(job.device, injected=EVERYTHING.stated())))
    (tmp_path / "record.json").write_text(json.dumps(made.to_json()))
    assert Injection.read(read(tmp_path / "record.json").job.device.injected) == EVERYTHING


def test_a_record_from_before_injections_is_read_as_having_none(tmp_path):
    document = record().to_json()
    del document["job"]["device"]["injected"]
    (tmp_path / "record.json").write_text(json.dumps(document))
    assert read(tmp_path / "record.json").job.device.injected is None


@needs_emulator
def test_addresses_are_drawn_at_random_by_a_seed():
    script = """
blocks = [torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(8)]
answer([[block.data_ptr() for block in blocks], torch.cuda.memory_reserved()])
"""
    (upward, reserved), *drawn = [run_job(script, inject=Injection(address_seed=seed)) for seed in (0, 1, 1, 2)]
    assert upward == sorted(upward) and reserved == 8 * 30 * MIB
    assert drawn[0] == drawn[1] != drawn[2]
    for addresses, held in drawn:
        assert addresses != sorted(addresses) and held == reserved
        assert all(after - before >= 30 * MIB for before, after in pairwise(sorted(addresses)))


def test_an_ordinary_job_does_not_start_inside_an_injected_one(monkeypatch):
    monkeypatch.setenv(injection.INJECTED, json.dumps({"injected": {"cublas_bytes": 1}, "hidden": {}}))
    with pytest.raises(InputError, match="inside an emulated GPU that something was injected into"):
        environment()


def test_a_wrong_key_on_the_command_line_is_one_clear_line():
    job = run_command("run", "--inject", "nccl_byte=1", "--", "true")
    assert is_one_clear_line(job, 'unknown key "nccl_byte"', "nccl_bytes")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"cublas_bytes": -1}, "cublas_bytes -1 must be a whole number"),
        ({"cublas_bytes": "1.5"}, 'cublas_bytes "1.5" must be a whole number'),
        ({"convolution_bytes_per_element": "1/0"}, 'convolution_bytes_per_element "1/0" must be a number'),
        ({"roundup_power2_divisions": 3}, "roundup_power2_divisions 3 must be a power of 2"),
        ({"cuda_malloc_granularity_bytes": 3 * MIB}, "must be a multiple of 2097152"),
        ({"cublas_workspace_config": "4096:2"}, "must be pairs of :KiB:count"),
        ({"address_step_bytes": 2 * MIB, "address_seed": 1}, "contradict each other"),
    ],
)
def test_what_cannot_be_injected_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        Injection(**values)
