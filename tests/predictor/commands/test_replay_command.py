"""``peakcast replay``: output, exit codes, and one line for a mistake."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.cli import main
from tests.predictor.histories import MIB, mapped, raw, recorded, steps

ROOT = Path(__file__).parents[3]
SMALL = str(recorded("small-out-of-memory"))


def error_of(capsys, *argv: str) -> str:
    assert main(["replay", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    return err.removeprefix("peakcast: error: ").rstrip("\n")


def test_agreement_is_exit_code_0(capsys):
    assert main(["replay", SMALL]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Simulation and recording agree in all of 787 events.\n")
    text = " ".join(text.split())
    assert "default settings · began empty · ran out of memory 1 time" in text
    assert text.endswith("Segments in order: 2.00 MiB, 32.00 MiB, 2.00 MiB")


def test_other_settings_are_an_answer_and_exit_code_0(capsys):
    path = str(recorded("llava-1.5-7b-zero2"))
    assert main(["replay", path, "--allocator-conf", "expandable_segments:True"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("With expandable_segments:True the job reserves 35.01 GiB instead of the recorded 40.12 GiB: "
                           "saves 5.12 GiB. The allocated peak is 33.65 GiB, 3.28 MiB less.")
    assert "differ" not in text and "37,589,352,448 B 40.12 GiB 43,083,890,688 B" in text


def test_other_settings_that_still_run_out_of_memory_are_exit_code_1(capsys):
    assert main(["replay", SMALL, "--allocator-conf", "expandable_segments:True"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "It still runs out of memory (1 of 1 times): at entry 602 it asks for 32.00 MiB" in text


def test_other_settings_at_a_capacity_say_whether_the_job_survives(capsys):
    settings = ["--allocator-conf", "max_split_size_mb:100", "--capacity-bytes"]
    assert main(["replay", SMALL, *settings, "1GiB"]) == 0
    assert "Of 1 recorded out-of-memory error none happens." in " ".join(capsys.readouterr().out.split())
    assert main(["replay", SMALL, *settings, "16MiB"]) == 1
    assert capsys.readouterr().out.startswith("With max_split_size_mb:100 the job runs out of memory: at entry ")


def test_a_capacity_alone_is_a_question_also_where_expandable_segments_were_recorded(capsys):
    path = str(recorded("random-warm-expandable"))  # which ran out of memory twice
    assert main(["replay", path, "--capacity-bytes", "80GiB"]) == 0
    assert "Of 2 recorded out-of-memory errors none happens." in " ".join(capsys.readouterr().out.split())


def test_the_device_in_the_snapshot_limits_pytorch(capsys, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(raw(steps(), device_total_memory=[1024 * MIB + 60 * MIB])))
    assert main(["replay", str(path), "--allocator-conf", "expandable_segments:True"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("PyTorch gets 60.00 MiB: the 1.06 GiB of the device in the snapshot, less 1.00 GiB assumed for the CUDA "
            "context, NCCL and libraries.") in text
    assert main(["replay", str(path), "--allocator-conf", "expandable_segments:True", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["capacity_bytes"], said["what_if"]["limit_bytes"]) == (1084 * MIB, 60 * MIB)
    assert said["what_if"]["assumed_outside_bytes"] == 1024 * MIB


def test_a_predicted_history_with_other_settings_is_what_predict_says_with_them(capsys, tmp_path):
    path, conf = str(tmp_path / "p.pickle"), ["--allocator-conf", "expandable_segments:True", "--json"]
    job = ["predict", "llava-1.5-7b", "--sequence-length", "1024", "--per-device-train-batch-size", "12", "--recipe",
           "lora", "--capacity-bytes", "23.64GiB"]  # of a GPU that is not named both assume as much outside PyTorch
    main([*job, "--snapshot", path])
    capsys.readouterr()
    predicted = main([*job, *conf]), json.loads(capsys.readouterr().out)["peak_reserved_bytes"]
    assert (main(["replay", path, *conf]), json.loads(capsys.readouterr().out)["peak_reserved_bytes"]) == predicted


def test_a_capacity_alone_asks_whether_the_job_survives_with_it(capsys):
    assert main(["replay", SMALL, "--capacity-bytes", "16MiB"]) == 1
    assert capsys.readouterr().out.startswith("With 16.00 MiB for PyTorch and the recorded settings the job runs out of")
    assert main(["replay", SMALL, "--capacity-bytes", "1GiB", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["what_if"]["limit_bytes"] == said["capacity_bytes"] == 1024 * MIB
    assert said["allocator_conf"] == said["what_if"]["recorded_allocator_conf"]


def test_a_capacity_that_recorded_expandable_segments_do_not_fit_into_is_another_one(capsys, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(raw(mapped(100 * MIB), device_total_memory=[])))
    assert main(["replay", str(path), "--capacity-bytes", "90MiB"]) == 1
    assert "90.00 MiB that PyTorch can have" in " ".join(capsys.readouterr().out.split())


def test_the_recorded_settings_and_those_without_effect_are_compared_as_before(capsys):
    for settings in ("", "pinned_use_background_threads:True"):
        assert main(["replay", SMALL, "--allocator-conf", settings]) == 0
        assert capsys.readouterr().out.startswith("Simulation and recording agree in all of 787 events.\n")


def test_a_difference_of_expandable_segments_names_the_capacity(capsys, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(raw(mapped(100 * MIB), device_total_memory=[])))
    assert main(["replay", str(path)]) == 1
    assert "does not tell: give it with --capacity-bytes." in " ".join(capsys.readouterr().out.split())
    assert main(["replay", str(path), "--capacity-bytes", "100MiB"]) == 0


def test_the_json_form(capsys):
    assert main(["replay", SMALL, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["events"], said["agrees"], said["first_divergence"]) == (787, True, None)
    assert said["segments"] == said["recorded"]["segments"] == [2 * MIB, 32 * MIB, 2 * MIB]
    assert said["peak_reserved_bytes"] == said["recorded"]["peak_reserved_bytes"] == 36 * MIB
    assert said["peak_allocated_bytes"] == 35_552_256
    assert said["recorded"]["out_of_memory"] == 1 and said["start"]["reserved_bytes"] == 0


def test_other_settings_in_json(capsys):
    path = str(recorded("llava-1.5-7b-zero2"))
    assert main(["replay", path, "--allocator-conf", "max_split_size_mb:100", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["allocator_conf"] == "max_split_size_mb:100" and said["agrees"] is said["first_divergence"] is None
    changes = said["what_if"]
    assert changes["recorded_allocator_conf"] == "" and changes["out_of_memory"] is None and changes["recording_agrees"]
    assert changes["recorded_peak_reserved_bytes"] == said["recorded"]["peak_reserved_bytes"] == 43_083_890_688
    assert changes["saved_reserved_bytes"] == 43_083_890_688 - said["peak_reserved_bytes"]


def test_the_answer_goes_to_a_file(capsys, tmp_path):
    path = tmp_path / "answer.json"
    assert main(["replay", SMALL, "--json", "-o", str(path)]) == 0
    assert capsys.readouterr().out == "" and json.loads(path.read_text())["agrees"]
    assert "exists already" in error_of(capsys, SMALL, "-o", str(path))


def test_nothing_recorded_is_exit_code_0(capsys, tmp_path):
    allocator = steps()
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(raw(allocator, len(allocator.entries))))
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.startswith("Nothing was recorded for this device")


def two_devices(path: Path, *traces: int) -> str:
    """A snapshot with the same history on these devices, of three."""
    value = raw(steps())
    trace, segments = value["device_traces"][0], value["segments"]
    value["device_traces"] = [trace if device in traces else [] for device in range(max(3, max(traces) + 1))]
    value["segments"] = [dict(segment, device=device) for device in traces for segment in segments]
    path.write_bytes(pickle.dumps(value))
    return str(path)


def test_the_only_device_with_a_history_is_replayed(capsys, tmp_path):
    assert main(["replay", two_devices(tmp_path / "x", 2), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == 2


def test_of_several_devices_one_is_chosen(capsys, tmp_path):
    path = two_devices(tmp_path / "x", 0, 2)
    assert error_of(capsys, path) == f"{path}: it has the histories of devices 0, 2: choose one with --device"
    many = two_devices(tmp_path / "many", *range(20))
    assert error_of(capsys, many).endswith("devices " + ", ".join(map(str, range(16))) + " and others: choose one with --device")
    assert main(["replay", path, "--device", "2"]) == 0


@pytest.mark.parametrize("argv, message", [
    (["nowhere"], "nowhere: no such file: check the path of the snapshot"),
    ([SMALL, "--device", "x"], '--device must be the number of a device, such as 0, not "x"'),
    ([SMALL, "--device", "5"], f"{SMALL}: it has no device 5: it lists 1 device(s)"),
    ([SMALL, "--allocator-conf", "max_split"],
     'allocator settings: cannot read "max_split"; write key:value,key:value'),
    ([SMALL, "--allocator-conf", "large_segment_size_mb:99999999999"],
     'allocator setting large_segment_size_mb: "99999999999" must be 1048576 or less (MiB): no device has that much'),
    ([SMALL, "--allocator-conf", "max_split_size_mb:18446744073709551616"],
     'allocator setting max_split_size_mb: "18446744073709551616" must be a whole number below 2^64'),
    ([SMALL, "--capacity-bytes", "x"], '--capacity-bytes must be a size such as 80GiB, not "x"'),
    ([], "the following arguments are required: SNAPSHOT (see peakcast replay --help)"),
])
def test_a_mistake_is_one_line_and_exit_code_2(capsys, argv, message):
    assert error_of(capsys, *argv) == message


def test_settings_in_the_file_that_are_not_simulated_name_the_file(capsys, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(pickle.dumps(raw(steps(), allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "colour:blue"})))
    assert error_of(capsys, str(path)) == f'{path}: unknown allocator setting "colour"'


def test_no_torch_is_needed():
    script = f"import sys; sys.modules['torch'] = None; from predictor.cli import main; sys.exit(main(['replay', {SMALL!r}]))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "agree in all of 787 events" in done.stdout


def test_the_help_has_examples(capsys):
    assert main(["replay", "--help"]) == 0
    assert "peakcast replay snapshot.pickle" in capsys.readouterr().out
