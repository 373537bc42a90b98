"""``peakcast predict --samples FILE --steps N``: its report, its JSON, its picture, and messages about options."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from predictor import cli

JOB = ("predict", "llava-1.5-7b", "--per-device-train-batch-size", "4", "--data-parallel-size", "8", "--zero-stage",
       "2", "--rank", "0", "--profile", "none")
SHORT = ("--capacity-bytes", "30GiB", "--seeds", "2")


@pytest.fixture
def lengths(tmp_path) -> str:
    path = tmp_path / "lengths.csv"
    path.write_text("tokens,images\n" + "".join(f"{620 + 37 * index % 1400},1\n" for index in range(200)))
    return str(path)


def answered(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main([*JOB, *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_report_says_which_step_and_batch_fail_and_what_prevents_it(capsys, lengths, tmp_path):
    code, out, _ = answered(capsys, "--samples", lengths, "--steps", "6", *SHORT, "--plot", str(tmp_path / "a.svg"))
    assert code == 1 and len(out.splitlines()) <= 50 and max(map(len, out.splitlines())) <= 100
    words = " ".join(out.split())
    assert re.match(r"This training runs out of memory at step [12] of 6\.", out)
    assert "of epoch 1 fails on rank 0 in" in words and "its batch is 4 x " in words
    assert "2 of 2 seeds run out of memory within 6 steps" in words
    assert "expandable_segments:True" in out and "segment calls" in out
    assert "Only this table simulates per_process_memory_fraction" in out
    picture = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert picture.tag.endswith("svg") and "PyTorch may reserve" in "".join(picture.itertext())


def test_the_json_has_every_step(capsys, lengths):
    code, out, _ = answered(capsys, "--samples", lengths, "--epochs", "0.5", "--json")
    course = json.loads(out)["course"]
    assert code == 0 and course["steps"] == round(course["steps_per_epoch"] / 2)
    assert {len(column) for column in course["columns"].values()} == {course["steps"] + 1}
    assert {"reserved_bytes", "idle_bytes", "granted"} <= course["columns"].keys()
    assert (course["failure"], course["chance"], course["trials"]) == (None, None, [])


def test_details_add_the_heaviest_batch(capsys, lengths):
    code, out, _ = answered(capsys, "--samples", lengths, "--steps", "3", "--details")
    assert code == 0 and "The batch that requests the most memory:" in out and "Not modelled: " in out
    assert "evaluations between the steps" in " ".join(out.split())


def test_start_up_may_fail_already(capsys, lengths):
    code, out, _ = answered(capsys, "--samples", lengths, "--steps", "2", "--capacity-bytes", "10GiB", "--seeds", "1")
    assert code == 1 and out.startswith("This training runs out of memory in start-up.")
    assert "Start-up fails on rank 0: " in out and "seeds" not in out and "expandable_segments" not in out


def test_a_course_that_no_change_saves_says_where_others_are_judged(capsys, lengths):
    _, out, _ = answered(capsys, "--samples", lengths, "--steps", "2", "--capacity-bytes", "21GiB", "--seeds", "1")
    [tokens] = re.findall(r"its batch is 4 x ([0-9,]+) tokens", " ".join(out.split()))
    assert f"--sequence-length {tokens.replace(',', '')}." in " ".join(out.split())


def test_without_a_gpu_nothing_is_said_to_run(capsys, lengths):
    code, out, _ = answered(capsys, "--samples", lengths, "--steps", "3")
    assert code == 0 and re.match(r"PyTorch reserves at most [0-9.]+ GiB in 3 steps; --gpu NAME or --capacity-bytes tells whether", out)


def test_the_longest_batch_first_is_the_first_step(capsys, lengths):
    def first(*words):
        course = json.loads(answered(capsys, "--samples", lengths, "--steps", "6", "--json", *words)[1])["course"]
        return course["columns"]["peak_requested_bytes"][1]
    assert first("--longest-first") > first()


def test_loops_are_courses_of_their_own(capsys, lengths):
    _, out, _ = answered(capsys, "--samples", lengths, "--steps", "3", "--loops")
    assert "- each micro-step brings its batch and replaces the last one: " in out
    assert "- the loop keeps the model's output (keep_outputs next_forward): " in out


@pytest.mark.parametrize("words, message", [
    (("--samples", "LENGTHS", "--steps", "5", "--sequence-length", "500"), "sample 1: 500 tokens have no room for 1 image"),
    (("--samples", "LENGTHS", "--steps", "5", "--sequence-length", "500"), "without a column of images has one image a sample"),
    (("--steps", "5"), "add --samples FILE"),
    (("--seeds", "5"), "--seeds is of a whole training: add --steps N or --epochs E"),
    (("--longest-first",), "--longest-first is of a whole training: add --steps N or --epochs E"),
    (("--samples", "LENGTHS", "--steps", "5", "--seeds", "2"), "depends on the GPU: add --gpu NAME"),
    (("--drop-last",), "--drop-last is of a whole training"),
    (("--samples", "LENGTHS", "--steps", "5", "--epochs", "1"), "and not both"),
    (("--samples", "LENGTHS", "--steps", "5", "--sampling", "longest"), "must be random, group_by_length, sequential"),
    (("--samples", "LENGTHS", "--steps", "5", "--maximum-load"), "--maximum-load is about one batch"),
    (("--samples", "LENGTHS", "--steps", "0"), "steps 0: must be above 0"),
    (("--samples", "LENGTHS", "--steps", "5", "--eval-steps", "2"), "give both, or leave both out"),
    (("--eval-samples", "LENGTHS"), "--eval-samples is of a whole training"),
    (("--samples", "LENGTHS", "--steps", "5", "--eval-samples", "none.csv", "--eval-steps", "2"), "none.csv"),
    (("--samples", "LENGTHS", "--steps", "5", "--eval-samples", "LENGTHS", "--eval-steps", "0"), "eval_steps 0"),
    (("--samples", "LENGTHS", "--epochs", "1e9"), "epochs 1000000000.0: must be above 0"),
])
def test_a_mistake_is_one_line(capsys, lengths, words, message):
    code, out, err = answered(capsys, *(lengths if word == "LENGTHS" else word for word in words))
    assert (code, out) == (2, "") and message in err and len(err.splitlines()) == 1


def test_samples_and_evaluated_ones_are_checked_by_the_pictures_of_each(capsys, tmp_path):
    (tmp_path / "t.csv").write_text("tokens,images\n400,1\n")  # 256 tokens of an image of 448 pixels a side
    (tmp_path / "e.csv").write_text("tokens,image_sizes\n1400,896x896\n")  # 1,024
    code = cli.main(["predict", "qwen2-vl-2b", "--image-size", "448", "--samples", str(tmp_path / "t.csv"), "--eval-samples", str(tmp_path / "e.csv"),
                     "--eval-steps", "1", "--steps", "1", "--gpu", "h100-80gb", "--seeds", "1"])
    assert code == 0 and " of 78.35 GiB." in capsys.readouterr().out


@pytest.mark.parametrize("option, course", [("samples", ()), ("samples", ("--steps", "2")), ("eval_samples", ("--steps", "2"))])
def test_samples_that_are_longer_than_the_model_are_refused(capsys, tmp_path, option, course):
    files = {name: tmp_path / f"{name}.csv" for name in ("samples", "eval_samples")}
    for name, path in files.items():
        path.write_text("tokens\n900\n1500\n" if name == option else "tokens\n900\n")
    evaluated = ("--eval-samples", str(files["eval_samples"]), "--eval-steps", "1") if option == "eval_samples" else ()
    code = cli.main(["predict", "gpt2", "--recipe", "full", "--samples", str(files["samples"]), *course, *evaluated])
    assert (code, capsys.readouterr().err) == (2, f"peakcast: error: {option}: sample 2 has 1,500 tokens: the model knows 1,024 "
                                               "positions only: give sequence_length 1024, to which longer samples are truncated\n")


def test_the_worst_batch_of_pictures_of_several_sizes_is_not_asked_for(capsys, tmp_path):
    path = tmp_path / "pictures.json"
    path.write_text(json.dumps([{"tokens": 900, "image_sizes": ["336x336"]}] * 9))
    code, _, err = answered(capsys, "--samples", str(path))
    assert code == 2 and "add --steps or --epochs" in err
