"""``peakcast oom``: messages from files and standard input, a job's prediction, a snapshot, and one line for a mistake."""

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.cli import main
from predictor.oom import log
from predictor.report.units import size_text
from tests.predictor.histories import MIB, raw, recorded, steps
from tests.predictor.oom.wordings import State, torch_2_11

GIB = 1 << 30
ROOT = Path(__file__).parents[3]
MESSAGE = torch_2_11(State(0, 2 * GIB, 42_294_690_447, GIB // 2, 30 * GIB, 8 * GIB))
JOB = ["llava-1.5-7b", "--sequence-length", "1024", "--per-device-train-batch-size", "32", "--zero-stage", "2",
       "--data-parallel-size", "8"]


@pytest.fixture
def path(tmp_path) -> str:
    """A log of two ranks."""
    file = tmp_path / "train.log"
    file.write_text(f'step 1\n[rank1]: Traceback (most recent call last):\n[rank1]:   File "/home/me/train.py", line 9, in f\n'
                    f"[rank1]: torch.OutOfMemoryError: {MESSAGE}\n[rank0]: {MESSAGE}\n")
    return str(file)


def error_of(capsys, *argv: str) -> str:
    assert main([*argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    return err.removeprefix("peakcast: error: ").rstrip("\n")


def test_a_message_is_explained(capsys, path):
    assert main(["oom", path, "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Out of memory on GPU 0: 2.00 GiB were asked for, and 512.00 MiB were free.")
    assert "line 4 · rank 1 · PyTorch 2.2 or later It happened at /home/me/train.py:9, f (from the traceback)." in text
    assert "idle in PyTorch's cache 8.00 GiB 8,589,934,592" in text
    assert "expandable_segments:True could make the 8.00 GiB of idle memory usable" in text
    assert text.endswith("1 more message in this log: - line 5 · rank 0 · PyTorch 2.2 or later: Out of memory on GPU 0: "
                         "2.00 GiB were asked for, and 512.00 MiB were free.")


@pytest.mark.parametrize("words", [[], ["-"]])
def test_without_a_log_standard_input_is_read(capsys, monkeypatch, words):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n" + MESSAGE.encode())))
    assert main(["oom", *words]) == 0
    assert "standard input · line 2" in capsys.readouterr().out


def test_the_json_form(capsys, path, tmp_path):
    answer = tmp_path / "why.json"
    assert main(["oom", path, "--json", "-o", str(answer)]) == 0
    assert capsys.readouterr().out == ""
    said = json.loads(answer.read_text())
    first = said["messages"][0]
    assert (first["source"], first["requested_bytes"], first["idle_bytes"]) == ("rank 1", 2 * GIB, 8 * GIB)
    assert first["rounding_bytes"]["requested_bytes"] == 5_368_710 and first["limit_bytes"] == 38 * GIB + GIB // 2
    assert [advice["cure"] for advice in first["advice"]] == ["expandable_segments"]
    assert said["prediction"] is said["reproduction"] is said["remedies"] is said["snapshot"] is None


def test_a_job_is_predicted_on_the_gpu_of_the_message(capsys, path):
    assert main(["oom", path, *JOB, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["prediction"]["capacity_bytes"] == said["messages"][0]["capacity_bytes"]
    again = said["reproduction"]
    assert again["rank"] == 1 and again["limit_bytes"] == said["messages"][0]["limit_bytes"] and again["agrees"] is False
    assert sum(again["factors"].values()) == again["out_of_memory"]["allocated_bytes"]
    for item in again["compared"]:
        assert item["difference_bytes"] == item["predicted_bytes"] - item["reported_bytes"]


def test_numbers_that_do_not_agree_are_said_plainly(capsys, path):
    assert main(["oom", path, *JOB, "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Predicted for this configuration on the whole GPU, 2.10 GiB outside PyTorch assumed: Does not fit" in text
    assert "The numbers do not agree, so this may be another failure than the reported one." in text


def test_remedies_are_judged_with_the_memory_that_pytorch_had(capsys, path):
    assert main(["oom", path, *JOB, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    fitting = [remedy for remedy in said["remedies"] if remedy["fits"]]
    assert fitting and all(remedy["peak_reserved_bytes"] <= said["reproduction"]["limit_bytes"] for remedy in fitting)
    assert main(["oom", path, *JOB]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Remedies, each predicted with the 38.50 GiB that PyTorch had: - Fits with {fitting[0]['own_words']}" in text
    assert "not checked with the job" not in text


LOW = torch_2_11(State(0, GIB // 2, 42_294_690_447, GIB // 4, 38 * GIB, GIB // 4))
"""A message of a job that had more allocated when it failed than is predicted for JOB."""


def test_what_the_prediction_missed_counts_for_remedies_and_is_said(capsys):
    assert main(["oom", LOW, *JOB, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    again, fitting = said["reproduction"], [remedy for remedy in said["remedies"] if remedy["fits"]]
    [allocated] = [item for item in again["compared"] if item["name"] == "allocated"]
    assert again["missed_bytes"] == -allocated["difference_bytes"] > GIB // 4
    assert fitting and all(
        remedy["peak_reserved_bytes"] <= again["limit_bytes"] - again["missed_bytes"] for remedy in fitting)
    assert main(["oom", LOW, *JOB]) == 0
    assert f"that PyTorch had less the {size_text(again['missed_bytes'])} not predicted:" in capsys.readouterr().out


def test_a_job_that_is_predicted_to_survive_missed_what_pytorch_needed_beyond_its_peak(capsys):
    assert main(["oom", LOW, *JOB, "--per-device-train-batch-size", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    message, again = said["messages"][0], said["reproduction"]
    assert again["missed_bytes"] == message["requested_bytes"] + max(
        row["reported_bytes"] - row["predicted_bytes"] for row in again["compared"] if row["name"] in ("allocated", "reserved"))


def test_what_tensors_hold_beyond_a_prediction_is_no_room_for_its_idle_memory(capsys):
    """All but 20 MiB of what PyTorch had were tensors: expandable segments, which make idle memory useful, cannot help."""
    message = torch_2_11(State(0, GIB // 8, 24 * GIB, 8 << 20, 23 * GIB + GIB // 4, 20 << 20))
    assert main(["oom", message, "llava-1.5-7b", "--recipe", "lora", "--sequence-length", "2048",
                 "--per-device-train-batch-size", "4", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["reproduction"]["peak_reserved_bytes"] < 23 * GIB  # the prediction does not explain it
    assert not any(remedy["fits"] for remedy in said["remedies"] if list(remedy["keys"]) == ["allocator_conf"])


def test_idle_memory_that_no_prediction_explains_is_what_expandable_segments_make_useful(capsys):
    """5 GiB of what PyTorch had were idle, though the job is predicted to survive with less."""
    message = torch_2_11(State(0, GIB // 2, 24 * GIB, GIB // 10, 18 * GIB, 5 * GIB))
    assert main(["oom", message, "llava-1.5-7b", "--recipe", "lora", "--sequence-length", "1024",
                 "--per-device-train-batch-size", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    again, first = said["reproduction"], said["remedies"][0]
    assert again["missed_bytes"] > again["missed_tensor_bytes"] > 0
    assert list(first["keys"]) == ["allocator_conf"] and first["fits"]
    assert first["peak_reserved_bytes"] <= again["limit_bytes"] - again["missed_tensor_bytes"]


def test_memory_of_other_processes_counts_for_remedies(capsys):
    """With another process on the GPU, a job fails that fits the whole GPU, and the remedies need less than that."""
    message = torch_2_11(State(0, 2 * GIB, 80 * GIB, GIB // 2, 37 * GIB, GIB, others=((7, 41 * GIB),)))
    assert main(["oom", message, *JOB, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["prediction"]["verdict"] == "fits" and said["reproduction"]["limit_bytes"] == 38 * GIB + GIB // 2
    assert any(remedy["fits"] for remedy in said["remedies"])


@pytest.mark.parametrize(("capacity", "said"), [
    ("47.53 GiB", "Taken to be "), ("39.39 GiB", "Taken to be a100-40gb, by its memory"),
    ("79.25 GiB", "Assumed the kernels of h100-80gb (as large: a100-80gb, a800-80gb …): give --gpu NAME."),
    ("300.00 GiB", "(no known GPU is as large)")])
def test_the_gpu_of_a_message_is_taken_by_its_memory_and_said(capsys, capacity, said):
    assert main(["oom", f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {capacity} of which "
                        "1.00 GiB is free.", *JOB]) == 0
    assert (said in " ".join(capsys.readouterr().out.split())) == (capacity != "47.53 GiB")


def test_a_named_gpu_with_another_memory_than_the_message_s_is_said_and_the_message_counts(capsys, path):
    assert main(["oom", path, *JOB, "--gpu", "a100-80gb", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["prediction"]["capacity_bytes"] == said["messages"][0]["capacity_bytes"]
    assert said["assumed"][0] == ("The message's GPU has 39.39 GiB, and a100-80gb has 79.25 GiB: the message's memory "
                                  "counts, with the kernels of a100-80gb.")


def test_one_gpu_that_is_assumed_is_said_and_named_among_the_causes(capsys, path):
    assert main(["oom", path, *JOB[:-2]]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Assumed 1 GPU: deepspeed is made for several, and nothing says how many: give --data-parallel-size." in text
    assert "The log names rank 1: at least 2 GPUs take part, and 1 is predicted: give --data-parallel-size." in text
    assert "The numbers do not agree: another failure, or another number of GPUs (--details: why)." in text
    assert main(["oom", path, *JOB[:-2], "--details"]) == 0
    assert "What may explain it: another number of GPUs than is predicted, " in " ".join(capsys.readouterr().out.split())


def test_a_gpu_that_is_named_is_not_assumed(capsys, path):
    assert main(["oom", path, *JOB, "--gpu", "a100-80gb"]) == 0
    text = capsys.readouterr().out
    assert "Assumed the kernels" not in text and "Taken to be" not in text


def test_a_snapshot_that_was_played_replaces_the_messages_guess_about_settings(capsys, path):
    assert main(["oom", path, "--snapshot", str(recorded("small-out-of-memory"))]) == 0
    text = capsys.readouterr().out
    assert "With expandable_segments:True" in text and "By this message alone: PYTORCH" not in text
    assert "idle memory usable" not in " ".join(text.split())


def test_a_library_s_error_gets_remedies_for_the_whole_gpu(capsys):
    assert main(["oom", "CUDA error: out of memory", *JOB, "--gpu", "a100-40gb"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "its failure cannot be compared. Remedies, each predicted on this GPU: - Fits with " in text


def test_a_job_that_is_predicted_to_survive_is_said_to_and_gets_remedies(capsys, path):
    assert main(["oom", path, *JOB, "--per-device-train-batch-size", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["reproduction"]["out_of_memory"] is None
    assert all(remedy["peak_reserved_bytes"] < said["prediction"]["peak_reserved_bytes"]
               for remedy in said["remedies"] if remedy["fits"])
    assert main(["oom", path, *JOB, "--per-device-train-batch-size", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "it survives" in text and "Remedies, each predicted with the 38.50 GiB that PyTorch had less " in text


EVERYTHING = torch_2_11(State(0, 2 * GIB, 79 * GIB, GIB // 2, 30 * GIB, 8 * GIB, pools=5 * GIB, this_process=45 * GIB,
                              others=((7, 10 * GIB), (8, 10 * GIB), (9, 13 * GIB))))
"""A message with a number for every holder."""


@pytest.mark.parametrize("words", [[], JOB, ["--snapshot", str(recorded("small-out-of-memory"))],
                                   [*JOB, "--snapshot", str(recorded("small-out-of-memory"))],
                                   [*JOB[:-2], "--gpu", "a100-40gb", "--snapshot", str(recorded("small-out-of-memory"))]])
def test_the_short_answer_has_at_most_40_lines_of_100_columns(capsys, monkeypatch, tmp_path, words):
    monkeypatch.setenv("COLUMNS", "100")
    file, folder = tmp_path / "train.log", "/home/me" + "/long" * 50
    file.write_text("".join(f'[rank{rank}]: Traceback (most recent call last):\n'
                            f'[rank{rank}]:   File "{folder}/train.py", line 9, in f\n'
                            f'[rank{rank}]:   File "{folder}/site-packages/model.py", line 9, in forward\n'
                            f"[rank{rank}]: torch.OutOfMemoryError: {EVERYTHING}\n" for rank in range(8)))
    assert main(["oom", str(file), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert "3 other processes 33.00 GiB" in text and "--details shows 7 more messages, " in text
    assert ("Fits with " in text) == (JOB[0] in words)


def test_the_short_answer_names_the_predicted_failure_the_peaks_and_remedies(capsys, path):
    assert main(["oom", path, *JOB]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Predicted with the 38.50 GiB that PyTorch could have: it runs out of memory in " in text
    assert "The numbers do not agree: the reported failure may be another one (--details: why)." in text
    assert "Allocated then, mostly: " in text and "Remedies, each predicted with the 38.50 GiB" in text
    assert "tried to allocate 2.00 GiB " in text


def test_the_short_answer_of_a_job_that_survives_says_so(capsys, path):
    assert main(["oom", path, *JOB, "--per-device-train-batch-size", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "it survives, with at most " in text and "The prediction does not explain this error (--details: what may)." in text


def test_the_short_answer_names_the_largest_blocks_of_a_snapshot(capsys, path):
    assert main(["oom", path, "--snapshot", str(recorded("small-out-of-memory"))]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("failed on device 0, with 33.55 MiB allocated, 34.00 MiB reserved. That is not the failure of the message, which had "
            "30.00 GiB allocated: what follows is of the snapshot's. Largest blocks, by line of code: ") in text


def test_a_snapshot_is_played_again_with_no_less_than_it_reserved(capsys, path, tmp_path):
    file = tmp_path / "x.pickle"
    file.write_bytes(pickle.dumps(raw(steps(), device_total_memory=[GIB + 40 * MIB])))  # it reserved 52 MiB
    assert main(["oom", path, "--snapshot", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "reserved peak of 42.00 MiB" in text and "runs out of the" not in text


def test_a_snapshot_says_what_was_alive(capsys, path):
    assert main(["oom", path, "--snapshot", str(recorded("small-out-of-memory")), "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the allocation of 32.00 MiB at entry 602 failed on device 0, with 33.55 MiB allocated" in text
    assert "without fragmentation the request would not have fit" in text
    assert "With expandable_segments:True: the job still runs out of memory, at entry 602" in text


def test_a_snapshot_without_a_failure_says_so(capsys, path):
    assert main(["oom", path, "--snapshot", str(recorded("small-overlap"))]) == 0
    assert "no failed allocation is recorded on device 0" in " ".join(capsys.readouterr().out.split())


def test_the_blocks_of_a_snapshot_without_a_failure_are_those_of_its_highest_point(capsys, path, tmp_path):
    file = tmp_path / "x.pickle"
    file.write_bytes(pickle.dumps(raw(steps())))  # 5 MiB are freed again
    assert main(["oom", path, "--snapshot", str(file), "--json"]) == 0
    blocks = json.loads(capsys.readouterr().out)["snapshot"]["allocations"]
    assert sum(row["requested_bytes"] for row in blocks) == (30 + 5 + 4) * MIB


def test_private_pools_in_a_snapshot_are_an_obstacle_and_no_error(capsys, path):
    assert main(["oom", path, "--snapshot", str(recorded("random-warm-pools"))]) == 0
    assert "is not known: it has private pools" in " ".join(capsys.readouterr().out.split())


def test_the_bare_words_of_an_error_are_answered_with_the_figures_to_look_for(capsys):
    assert main(["oom", "CUDA out of memory"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Out of memory on a CUDA GPU; the text has no figures. the given message · line 1 Look for the")


def test_an_error_of_nccl_says_that_its_memory_lies_outside_pytorch(capsys):
    assert main(["oom", "ncclUnhandledCudaError: Call to CUDA function failed.\nFailed to CUDA malloc 10485760 bytes"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("NCCL ran out of memory on the GPU: it asked for 10.00 MiB.")
    assert "NCCL's buffers lie outside PyTorch's allocator" in text


def test_a_log_without_a_message_says_what_was_searched(capsys, tmp_path):
    file = tmp_path / "train.log"
    file.write_text("all is well\n")
    assert error_of(capsys, "oom", str(file)) == (
        f'{file}: has no out-of-memory message (searched: "CUDA out of memory. Tried to allocate …", "CUDA error: out of '
        'memory" and the like): give the log, or the text, that contains it')


@pytest.mark.parametrize("model", ["llava-1.5-7b", "Qwen/Qwen2.5-VL-7B-Instruct", "{}"], ids=["name", "hub", "file"])
@pytest.mark.parametrize("more", [[], ["nowhere.log"]])
def test_a_model_in_place_of_the_log_leads_to_the_right_order(capsys, tmp_path, model, more):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama"}')
    model = model.format(file)
    assert error_of(capsys, "oom", model, *more) == (
        f"{model} is a model, and the log comes first: peakcast oom LOG {model} … (- in place of LOG is standard input)")


def test_a_name_that_is_neither_log_nor_model_is_told_of_both(capsys):
    assert error_of(capsys, "oom", "nowhere.log").endswith(
        "if it is the MODEL, give the log before it, or - for standard input")


@pytest.mark.parametrize("option, value", [("--gpu", "a100-80gb"), ("--zero-stage", "2")])
def test_an_option_of_a_job_that_is_not_given_asks_for_the_job(capsys, path, option, value):
    assert error_of(capsys, "oom", path, option, value) == (
        f"{option} describes the job of the message, and no job is given: add its MODEL after the log, or --from FILE")


@pytest.mark.parametrize("first", ["llava-1.5-7b", "no-such-model"])
def test_a_log_and_a_model_that_changed_places_are_put_in_order(capsys, path, first):
    assert error_of(capsys, "oom", first, path) == f"the log comes first: peakcast oom {path} {first} …"


def test_a_message_after_the_model_is_told_to_come_first(capsys):
    assert error_of(capsys, "oom", "llava-1.5-7b", MESSAGE) == (
        'the message comes first: peakcast oom "CUDA out of memory. …" llava-1.5-7b …')


@pytest.mark.parametrize("words", [[*JOB, "{}"], ["llava-1.5-7b", "--sequence-length", "1024", "{}"]])
def test_a_log_after_the_model_is_told_to_come_first(capsys, path, words):
    assert error_of(capsys, "oom", *(word.format(path) for word in words)) == (
        f"the log comes first: peakcast oom {path} MODEL …")


@pytest.mark.parametrize("message, whose", [
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
     "to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)", "of the host's memory"),
    ("RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB). "
     "Tried to allocate 256.00 MB on private pool.", "of Apple's GPU (MPS)"),
    ("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB.", "of an XPU"),
    ("RuntimeError: NPU out of memory. Tried to allocate 20.00 MiB (NPU 0; 60.97 GiB total capacity)", "of an NPU"),
    ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.", "of JAX or TensorFlow"),
])
def test_an_error_of_another_device_is_named(capsys, tmp_path, message, whose):
    said = f"this out-of-memory error is {whose}, not of PyTorch on a CUDA GPU: peakcast explains only those"
    assert error_of(capsys, "oom", message) == f"the given message: {said}"
    file = tmp_path / "train.log"
    file.write_text(f"step 1\n{message}\n")
    assert error_of(capsys, "oom", str(file)) == f"{file}: {said}"


def test_a_device_needs_a_snapshot(capsys, path):
    assert error_of(capsys, "oom", path, "--device", "1") == "--device names a device of a snapshot: add --snapshot FILE"
    assert "it has no device 7" in error_of(capsys, "oom", path, "--device", "7", "--snapshot",
                                            str(recorded("small-overlap")))


def test_a_message_without_a_capacity_asks_for_the_gpu(capsys, tmp_path):
    file = tmp_path / "train.log"
    file.write_text("CUDA error: out of memory")
    assert error_of(capsys, "oom", str(file), *JOB) == (
        "the message does not tell the GPU's memory: add --gpu NAME or --capacity-bytes SIZE")


def test_a_log_that_is_too_large_is_refused(capsys, monkeypatch, path):
    monkeypatch.setattr(log, "LARGEST_LOG_BYTES", 1)
    assert "is larger than" in error_of(capsys, "oom", path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"much")))
    assert "standard input: is larger than" in error_of(capsys, "oom")


@pytest.mark.parametrize("words", [["{}"], ["--from", "{}"], ["--workload", "{}"],
                                   ["--from", "{}", "--from-format", "llava"]])
@pytest.mark.parametrize("suffix", [".log", ".json", ".sh", ""])
def test_predict_points_to_this_command_for_a_log(capsys, path, tmp_path, words, suffix):
    file = tmp_path / f"log{suffix}"
    file.write_text(Path(path).read_text())
    error = error_of(capsys, "predict", *(word.format(file) for word in words))
    assert error.endswith(f"; it holds an out-of-memory error: peakcast oom {file} explains it")


@pytest.mark.parametrize("words", [["{}"], ["replay", "{}"], ["models", "{}"], ["oom", "-", "--snapshot", "{}"],
                                   ["predict", "llava-1.5-7b", "--deepspeed={}"]])
def test_so_does_every_command_that_reads_a_file(capsys, monkeypatch, path, words):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MESSAGE.encode())))
    assert error_of(capsys, *(word.format(path) for word in words)).endswith(f"peakcast oom {path} explains it")


def test_an_error_about_something_else_stays_as_it_is(capsys, path):
    assert "explains it" not in error_of(capsys, "oom", path, *JOB, "--zero-stage", "9")
    assert "explains it" not in error_of(capsys, "predict", "nowhere.log")


def test_the_message_itself_can_be_an_argument(capsys):
    assert main(["oom", MESSAGE]) == 0
    assert "the given message · line 1 · PyTorch 2.2 or later" in " ".join(capsys.readouterr().out.split())


def test_names_in_a_log_do_not_control_the_terminal(capsys):
    log = f'Traceback (most recent call last):\n  File "/home/\x1b[31mme[bold].py", line 9, in f\n{MESSAGE}'
    assert main(["oom", log]) == 0
    assert r"It happened at /home/\x1b[31mme[bold].py:9, f" in capsys.readouterr().out


def test_a_message_that_was_cut_off_says_so(capsys):
    assert main(["oom", MESSAGE[:70]]) == 0
    assert "does not tell what holds the memory: give it to its end" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", [["predict"], ["replay"], ["models"], []])
def test_a_pasted_message_leads_here(capsys, command):
    assert error_of(capsys, *command, MESSAGE) == (
        "this is an out-of-memory message: peakcast oom explains it, in quotes or on standard input")


def test_no_torch_is_needed(path):
    script = f"import sys; sys.modules['torch'] = None; from predictor.cli import main; sys.exit(main(['oom', {path!r}]))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("Out of memory on GPU 0")


def test_no_line_ends_in_spaces(capsys, path):
    assert main(["oom", path, *JOB]) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.endswith(" ")]


def test_several_words_are_a_message_not_the_name_of_a_file(capsys):
    assert "the given message: has no out-of-memory message" in error_of(capsys, "oom", "RESOURCE_EXHAUSTED: no memory left")
