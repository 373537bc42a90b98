"""The command: options, files, exit codes, and one line for a mistake."""

import json

import pytest

from predictor.cli import COMMANDS, main
from predictor.common.errors import InputError
from tests.predictor import samples

ENOUGH = ["llava-1.5-7b", "--sequence-length", "1024"]


@pytest.fixture
def asked(monkeypatch):
    """The workloads that a hand-made predict() was called with."""
    workloads = []

    def predict(workload, **_):
        workloads.append(workload)
        return samples.prediction(workload)

    monkeypatch.setattr("predictor.answer.predict.predict", predict)
    return workloads


def error_of(capsys, *argv: str) -> str:
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    return err.removeprefix("peakcast: error: ").rstrip("\n")


def test_options_become_the_workload(asked, capsys):
    code = main(["predict", "llava-1.5-13b", "--recipe", "full", "--per-device-train-batch-size", "4", "--sequence-length",
                 "2048", "--gradient-checkpointing", "--trainable", "a.*", "--trainable", "b.*", "--rank", "3",
                 "--zero-stage", "2", "--data-parallel-size", "8", "--capacity-bytes", "80GiB", "--max-grad-norm", "0.5",
                 "--gradient-checkpointing-kwargs", '{"use_reentrant": true}', "--versions", "deepspeed=0.18.5"])
    assert code == 0
    assert asked == [samples.workload(
        model="llava-1.5-13b", recipe="full", per_device_train_batch_size=4, sequence_length=2048,
        gradient_checkpointing=True, trainable=["a.*", "b.*"], rank=3, capacity_bytes=80 << 30, max_grad_norm=0.5,
        gradient_checkpointing_kwargs={"use_reentrant": True}, versions={"deepspeed": "0.18.5"})]


def test_hugging_faces_underscores_are_understood(asked):
    assert main(["predict", "m", "--sequence_length=9", "--per_device_train_batch_size", "2"]) == 0
    assert (asked[0].sequence_length, asked[0].per_device_train_batch_size) == (9, 2)


def test_an_option_given_again_adds_to_what_was_said_before(asked):
    assert main(["predict", *ENOUGH, "--lora", "r=16", "--lora", '{"use_dora": true}', "--ddp", "static_graph=false",
                 "--engine", "ddp"]) == 0
    assert (asked[0].lora["r"], asked[0].lora["use_dora"]) == (16, True) and "static_graph" not in asked[0].ddp


def test_options_override_the_file(asked, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("{model: m, sequence_length: 9, recipe: full, per_device_train_batch_size: 3}")
    assert main(["predict", "--workload", str(job), "--sequence-length", "7"]) == 0
    assert (asked[0].sequence_length, asked[0].recipe, asked[0].per_device_train_batch_size) == (7, "full", 3)
    assert "sequence_length" not in asked[0].filled_in


@pytest.mark.parametrize("option, expected", [
    ("wrap=accelerate", ("accelerate", "bf16")), ('{"wrap": "accelerate"}', ("accelerate", None))])
def test_key_value_goes_over_that_key_of_the_file_and_an_object_over_all(asked, tmp_path, option, expected):
    job = tmp_path / "job.yaml"
    job.write_text("{model: m, sequence_length: 9, engine: fsdp2, data_parallel_size: 2, fsdp: {param_dtype: bf16}}")
    assert main(["predict", "--workload", str(job), "--fsdp", option]) == 0
    assert (asked[0].fsdp["wrap"], asked[0].fsdp["param_dtype"]) == expected


def test_a_resolved_workload_can_be_asked_again(asked, tmp_path, capsys):
    assert main(["predict", *ENOUGH, "--zero-stage", "2", "--json"]) == 0
    job = tmp_path / "job.json"
    job.write_text(json.dumps(json.loads(capsys.readouterr().out)["workload"]))
    assert main(["predict", "--workload", str(job)]) == 0
    assert asked[0] == asked[1]


@pytest.mark.parametrize("gpu, code", [([], 0), (["--gpu", "h100-80gb"], 0), (["--gpu", "rtx-4090"], 1)])
@pytest.mark.parametrize("command", ["predict", "explain"])
def test_the_exit_code_says_whether_it_fits(asked, command, gpu, code):
    assert main([command, *ENOUGH, *gpu]) == code


def test_an_uncertain_verdict_is_no_success(monkeypatch):
    monkeypatch.setattr("predictor.answer.predict.predict",
                        lambda workload, **_: samples.prediction(samples.workload(gpu="h100"), verdict="uncertain"))
    assert main(["predict", *ENOUGH]) == 1


@pytest.mark.parametrize("argv, message", [
    (["predict"], "MODEL is not given: name one, such as llava-1.5-7b"),
    (["predict", "llava-1.5-7b"], "sequence_length is not given: add --sequence-length, the tokens of a sample with its images"),
    (["predict", "m", "--sequence-length", "0"], "--sequence-length must be at least 1, not 0"),
    (["predict", "m", "--sequence-length", "9", "--per-device-train-batch-size", "1_0"],
     '--per-device-train-batch-size must be a whole number, not "1_0"'),
    (["predict", "m", "--sequence-length", "9", "--max-grad-norm", "1_0"], '--max-grad-norm must be a number, not "1_0"'),
    (["predict", *ENOUGH, "--no-gradient-checkpointing", "--gradient-checkpointing-kwargs", "every_n_layers=2"],
     "--gradient-checkpointing-kwargs are given, but gradient_checkpointing is off: leave one of them out"),
    (["predict", *ENOUGH, "--trainable", "a.*", "--frozen", "b", "--frozen", "a.*"],
     '--frozen names "a.*", and so does trainable: leave one of them out'),
    (["predict", *ENOUGH, "-o", ""], 'the output is "": name a file'),
    (["predict", "m", "--sequence-length", "many"], '--sequence-length must be a whole number, not "many"'),
    (["predict", "m", "--sequence-length"], "argument --sequence-length: expected one argument (see peakcast predict --help)"),
    (["predict", "m", "--batch-size", "3"],
     'unknown argument "--batch-size" (did you mean "--per-device-train-batch-size"?)'),
    (["predict", "--model", "m"], 'unknown argument "--model": give the model as it is, without an option'),
    (["predict", "m", "--gpus", "2"], 'unknown argument "--gpus" (did you mean "--data-parallel-size"?)'),
    *(([command, "m", f"--{said}", "2"], f'unknown argument "--{said}" (did you mean "--{ours}"?)')
      for command in ("predict", "plan", "explain", "measure") for said, ours in (
          ("bs", "per-device-train-batch-size"), ("micro-batch", "per-device-train-batch-size"), ("4bit", "quantization"),
          ("seq-len", "sequence-length"), ("grad-accum", "gradient-accumulation-steps"),
          ("qlora", "quantization load_in_4bit=true"), ("lora-rank", "lora"), ("batchsize", "per-device-train-batch-size"))),
    (["predict", "m", "--max-batch"], 'unknown argument "--max-batch" (did you mean "--maximum-load"?)'),
    (["predict", "m", "--sequence-lenght=3"], 'unknown argument "--sequence-lenght=3" (did you mean "--sequence-length"?)'),
    (["predict", "m", "n"], 'unknown argument "n" (see peakcast predict --help)'),
    (["predict", *ENOUGH, "--torch-compile"],
     "--torch-compile is not supported yet: compiled models allocate differently; leave it out"),
    (["predict", *ENOUGH, "--rank", "last"],
     '--rank must be "worst" or the number of a rank: must be a whole number, not "last"'),
    (["predict", *ENOUGH, "--versions", "torch"],
     '--versions must be KEY=VALUE with a key of torch, transformers, deepspeed, peft, bitsandbytes, not "torch"'),
    (["predict", *ENOUGH, "--quantization", "llm_int8_has_fp16_weight=true"],
     "--quantization llm_int8_has_fp16_weight is not supported yet: leave it out"),
    (["predict", *ENOUGH, "--lora", "r=0"], "--lora r must be at least 1, not 0"),
    (["predict", *ENOUGH, "--lora", "target_modules=("],
     "--lora target_modules is no regular expression: missing ), unterminated subpattern at position 0"),
    (["predict", *ENOUGH, "--deepspeed", "{"],
     "deepspeed: not valid JSON at line 1, column 2: Expecting property name enclosed in double quotes"),
    (["predict", *ENOUGH, "--deepspeed", "nowhere.json"],
     "nowhere.json: no such file: check the path of the DeepSpeed config (looked in the current directory)"),
    (["explain", *ENOUGH, "--layers", "0"], '--layers must be a whole number from 1 to 99999, not "0"'),
    (["explain", *ENOUGH, "--picture", "a.png"], "--picture writes SVG: name a file that ends in .svg"),
    (["predicct"], 'unknown command "predicct" (did you mean "predict"?): commands are predict, explain, oom, plan, fits, explore, measure, calibrate, report, learn, dryrun, replay, models, profiles, samples, schema, completion'),
])
def test_a_mistake_is_one_line_and_exit_code_2(capsys, argv, message):
    assert error_of(capsys, *argv) == message


def test_a_mistake_in_a_file_names_the_file_and_one_in_an_option_the_option(capsys, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("{model: m, sequence_length: 9, zero_stage: 2, data_parallel_size: 0}")
    assert error_of(capsys, "predict", "--workload", str(job)) == f"{job}: data_parallel_size must be at least 1, not 0"
    message = error_of(capsys, "predict", "--workload", str(job), "--data-parallel-size", "4", "--rank", "4")
    assert message == "--rank is 4, but data_parallel_size 4 has the ranks 0 to 3"


def test_an_unknown_key_in_a_file_names_the_file(capsys, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("batch_size: 3")
    assert error_of(capsys, "predict", "--workload", str(job)) == (
        f'{job}: unknown key "batch_size" (did you mean "per_device_train_batch_size"?)')


def test_a_mistake_that_prediction_finds_is_one_line_too(capsys, monkeypatch):
    def predict(workload, **_):
        raise InputError("first\nsecond")

    monkeypatch.setattr("predictor.answer.predict.predict", predict)
    assert error_of(capsys, "predict", *ENOUGH) == "first second"


@pytest.mark.parametrize("argv", [[], ["--help"], ["help"]])
def test_help_lists_the_commands(capsys, argv):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(capsys, command):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out and f"\n  peakcast {command} " in out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("peakcast ")


def test_an_interrupt_is_quiet(monkeypatch, capsys):
    def predict(workload, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr("predictor.answer.predict.predict", predict)
    assert main(["predict", *ENOUGH]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_gpu_whose_memory_the_name_leaves_open_is_said(capsys):
    words = ["predict", "llava-1.5-7b", "--sequence-length", "1024", "--per-device-train-batch-size", "1", "--gpu"]
    assert main([*words, "a100"]) == 0
    assert "--gpu a100 is taken as a100-80gb; there is also a100-40gb" in capsys.readouterr().err
    assert main([*words, "a100-80gb"]) == 0 and capsys.readouterr().err == ""
