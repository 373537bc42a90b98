"""``peakcast fits``, the GitHub Action and the pre-commit hook, in a sample repository."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from predictor.cli import main

ROOT = Path(__file__).parents[3]
JOB = """model: llava-1.5-7b
recipe: finetune
per_device_train_batch_size: {batch}
sequence_length: 1024
zero_stage: 2
data_parallel_size: 8
optim: adamw_torch_fused
"""
GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
GPU = ("--gpu", "a100-40gb")


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository with one configuration that fits, one commit, and a folder for configurations."""
    folder = tmp_path / "repository" / "configs"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))  # what other tests have traced would fit, too
    (folder / "job.yaml").write_text(JOB.format(batch=16))
    git("init", "--quiet")
    commit()
    return folder.parent


def git(*words: str) -> None:
    subprocess.run([*GIT, *words], check=True)


def commit() -> None:
    git("add", ".")
    git("commit", "--quiet", "--message", "Configurations")


def answered(capsys, *words: str) -> tuple[int, str]:
    code = main(["fits", *words])
    return code, capsys.readouterr().out


def test_a_file_that_fits(repository, capsys):
    assert answered(capsys, "configs/job.yaml", *GPU) == (
        0, "configs/job.yaml: fits a100-40gb: 36.97 GiB reserved of 39.39 GiB\n")


def test_a_file_that_grew_past_its_limit_fails_with_one_line_that_says_what_changed(repository, capsys):
    Path("configs/job.yaml").write_text(JOB.format(batch=24))
    code, text = answered(capsys, "configs/job.yaml", *GPU, "--base", "main")
    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith("configs/job.yaml: does not fit a100-40gb: 47.75 GiB reserved of 39.39 GiB; 10.78 GiB more "
                           "than at main (per_device_train_batch_size 16 → 24); it fits with ")


def test_an_unchanged_file_is_the_same_as_at_its_base(repository, capsys):
    assert answered(capsys, "configs/job.yaml", *GPU, "--base", "main")[1].endswith("; the same as at main\n")


def test_a_new_file_is_called_new(repository, capsys):
    Path("configs/new.yaml").write_text(JOB.format(batch=8))
    assert answered(capsys, "configs/new.yaml", *GPU, "--base", "main")[1].endswith("; new since main\n")


def test_a_renamed_file_is_compared_with_the_old_one(repository, capsys):
    git("mv", "configs/job.yaml", "configs/run.yaml")
    Path("configs/run.yaml").write_text(JOB.format(batch=12))
    text = answered(capsys, "configs/run.yaml", *GPU, "--base", "main")[1]
    assert " less than configs/job.yaml at main (per_device_train_batch_size 16 → 12)" in text


def test_a_renamed_file_is_found_from_another_directory_and_by_its_whole_path(repository, capsys, monkeypatch):
    git("mv", "configs/job.yaml", "job.yaml")
    monkeypatch.chdir("configs")
    assert "; the same as job.yaml at main\n" in answered(capsys, "../job.yaml", *GPU, "--base", "main")[1]
    assert "; the same as job.yaml at main\n" in answered(capsys, str(repository / "job.yaml"), *GPU, "--base", "main")[1]


def test_the_table_says_what_a_file_was_called(repository, capsys):
    git("mv", "configs/job.yaml", "job.yaml")
    answered(capsys, "job.yaml", *GPU, "--base", "main", "--markdown", "table.md")
    assert "| was `configs/job.yaml`: same |" in Path("table.md").read_text()


def test_a_file_with_its_whole_path_is_compared_with_the_base(repository, capsys):
    Path("configs/job.yaml").write_text(JOB.format(batch=8))
    text = answered(capsys, str(repository / "configs/job.yaml"), *GPU, "--base", "main")[1]
    assert "(per_device_train_batch_size 16 → 8)" in text


ASSUMING = "".join(line for line in JOB.format(batch=1).splitlines(True) if line.split(":")[0] not in ("data_parallel_size", "optim"))
LLAMA_FACTORY = """model_name_or_path: llava-hf/llava-1.5-7b-hf
stage: sft
do_train: true
finetuning_type: full
freeze_vision_tower: true
deepspeed: zero.json
dataset: mllm_demo
template: llava
cutoff_len: 1024
per_device_train_batch_size: 24
bf16: true
output_dir: out
"""


def test_what_makes_it_fit_is_said_in_the_words_of_a_frameworks_file(repository, capsys):
    Path("zero.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}')
    Path("job.yaml").write_text(LLAMA_FACTORY)
    text = answered(capsys, "job.yaml", *GPU, "--data-parallel-size", "8")[1]
    assert "; it fits with per_device_train_batch_size: 12, gradient_accumulation_steps: 2 (job.yaml): " in text


@pytest.mark.parametrize("name, words", [
    ("job.yaml", "per_device_train_batch_size: 12, gradient_accumulation_steps: 2"),
    ("job.json", '"per_device_train_batch_size": 12, "gradient_accumulation_steps": 2')])
def test_what_makes_it_fit_is_said_in_the_words_of_a_workload_file(name, words, repository, capsys):
    job = yaml.safe_load(JOB.format(batch=24))
    Path(name).write_text(json.dumps(job))
    assert f"; it fits with {words} ({name}): " in answered(capsys, name, *GPU)[1]


def test_what_an_option_sets_is_changed_by_the_option(repository, capsys):
    text = answered(capsys, "configs/job.yaml", *GPU, "--per-device-train-batch-size", "24")[1]
    assert "; it fits with --per-device-train-batch-size 12 --gradient-accumulation-steps 2: " in text


def test_a_deepspeed_config_alone_is_answered_with_what_to_give(repository, capsys):
    Path("zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert answered(capsys, "zero.json", *GPU) == (2, (
        "zero.json: not predicted: this is a DeepSpeed config, which does not say what is trained: give the file of the "
        "training that names it, such as a workload with the key deepspeed\n"))


def test_a_workload_without_a_model_says_so(repository, capsys):
    Path("job.yaml").write_text(JOB.format(batch=1).partition("\n")[2])
    assert answered(capsys, "job.yaml", *GPU)[1] == (
        "job.yaml: not predicted: names no model: add one, such as model: llava-1.5-7b\n")


def test_a_file_that_another_one_names_is_taken_from_the_base_too(repository, capsys):
    zero = {"train_micro_batch_size_per_gpu": 16, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    Path("configs/zero.json").write_text(json.dumps(zero))
    Path("configs/job.yaml").write_text(JOB.format(batch=16).replace("zero_stage: 2", "deepspeed: configs/zero.json"))
    commit()
    zero["zero_optimization"] = {"stage": 1, "overlap_comm": False}
    Path("configs/zero.json").write_text(json.dumps(zero))
    text = answered(capsys, "configs/job.yaml", *GPU, "--base", "HEAD")[1]
    assert "(zero_optimization.stage 2 → 1, zero_optimization.overlap_comm not given → false)" in text


def test_what_is_assumed_is_said_before_what_makes_it_fit(repository, capsys):
    Path("job.yaml").write_text(ASSUMING)
    text = answered(capsys, "job.yaml", *GPU)[1]
    assert "; assumed 1 GPU (give --data-parallel-size); assumed optim adamw_torch_fused, whose states are " in text


def test_nothing_from_a_file_is_markup_in_the_table(repository, capsys):
    Path("a|b.yaml").write_text(JOB.format(batch=24))
    Path("f @x [k](y).yaml").write_text(LLAMA_FACTORY)
    Path("zero.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}')
    Path("c.yaml").write_text(JOB.format(batch=1) + 'gpu: "a | @somebody <b> `"\n')
    Path("configs/job.yaml").write_text(JOB.format(batch=1) + 'no_grad: ["*tower*"]\n')
    answered(capsys, "a|b.yaml", "c.yaml", "configs/job.yaml", "f @x [k](y).yaml", "--capacity-bytes", "39GiB", "--base", "main", "--markdown", "t.md")
    head, _, *rows = [line for line in Path("t.md").read_text().splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in (head, *rows)} == {8}
    outside = " ".join(re.sub(r"`[^`]*`", "", row) for row in rows)
    assert len(rows) == 4 and not re.search(r"(?<!\\)[*<\[]|@x|a\|b", outside)
    assert "`no_grad [] → ['*tower*']`" in rows[2].replace("per_device_train_batch_size 16 → 1, ", "")


def test_the_table_is_followed_by_what_is_assumed(repository, capsys):
    Path("job.yaml").write_text(ASSUMING)
    answered(capsys, "job.yaml", "configs/job.yaml", *GPU, "--markdown", "table.md")
    [said] = [line for line in Path("table.md").read_text().splitlines() if line.startswith("- ")]
    assert said.startswith("- `job.yaml`: Assumed 1 GPU (give --data-parallel-size); Assumed optim adamw_torch_fused, ")


def test_json_has_the_assumptions_of_the_prediction(repository, capsys):
    Path("job.yaml").write_text(ASSUMING)
    [row] = json.loads(answered(capsys, "job.yaml", *GPU, "--json")[1])
    main(["predict", "--workload", "job.yaml", *GPU, "--json"])
    assert row["assumptions"] == json.loads(capsys.readouterr().out)["assumptions"] != []


def test_the_working_directory_is_the_same_afterwards(repository, capsys):
    answered(capsys, "configs/job.yaml", *GPU, "--base", "main")
    assert Path.cwd() == repository


def test_a_file_that_is_not_predicted_does_not_hide_the_others(repository, capsys):
    Path("configs/wrong.yaml").write_text(JOB.format(batch=0))
    code, text = answered(capsys, "configs/wrong.yaml", "configs/job.yaml", *GPU)
    assert (code, text.count("\n")) == (2, 2)
    assert "configs/wrong.yaml: not predicted: " in text and "job.yaml: fits" in text


def test_an_earlier_state_that_is_not_predicted_is_no_new_file(repository, capsys):
    Path("configs/job.yaml").write_text("model: [")
    commit()
    Path("configs/job.yaml").write_text(JOB.format(batch=1))
    assert "; not predicted at HEAD" in answered(capsys, "configs/job.yaml", *GPU, "--base", "HEAD")[1]


def test_the_format_of_a_file_can_be_named(repository, capsys):
    Path("job.yaml").write_text("model_name_or_path: llava-hf/llava-1.5-7b-hf\nbf16: true\nrecipe: unknown\n")
    words = "job.yaml", "configs/job.yaml", *GPU, "--from-format", "transformers", "--sequence-length", "1024"
    named, workload = answered(capsys, *words)[1].splitlines()
    assert "recipe: " in named and "--from-format" not in named and workload.startswith("configs/job.yaml: fits")


def test_a_model_in_python_is_not_run(repository, capsys):
    Path("evil.py").write_text("open('ran', 'w')\n")
    Path("configs/job.yaml").write_text(JOB.format(batch=1).replace("llava-1.5-7b", "evil.py:model"))
    code, said = answered(capsys, "configs/job.yaml", *GPU)
    assert code == 2 and 'the model "evil.py:model" is code, which fits does not run' in said and not Path("ran").exists()


def test_json_has_one_object_for_each_file(repository, capsys):
    _, text = answered(capsys, "configs/job.yaml", *GPU, "--json", "--base", "main")
    [row] = json.loads(text)
    assert (row["verdict"], row["before_bytes"], row["changes"]) == ("fits", row["peak_reserved_bytes"], [])


@pytest.mark.parametrize("words, message", [
    (["configs/job.yaml", *GPU, "--base", "nowhere"],
     '"nowhere" is no revision of this repository: fetch it first, or name another'),
    (["configs/job.yaml", *GPU, "-o", "a", "--markdown", "a"], "--markdown and -o name the same file: give two")])
def test_bad_input(words, message, repository, capsys):
    assert main(["fits", *words]) == 2
    assert capsys.readouterr().err == f"peakcast: error: {message}\n"


def test_a_file_without_a_gpu_does_not_hide_the_others(repository, capsys):
    Path("own.yaml").write_text(JOB.format(batch=16) + "gpu: a100-40gb\n")
    code, text = answered(capsys, "configs/job.yaml", "own.yaml")
    assert code == 2 and "own.yaml: fits a100-40gb: " in text
    assert "configs/job.yaml: not predicted: names no GPU: add --gpu, such as --gpu a100-40gb\n" in text


def test_outside_a_repository_git_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB.format(batch=16))
    assert main(["fits", "job.yaml", *GPU, "--base", "main"]) == 2
    assert "the current directory is in no Git repository: run this in the repository" in capsys.readouterr().err


GH = """
case "$*" in
    *--jq*) echo "$FOUND" ;;
    *) echo "$@" | sed "s|$RUNNER_TEMP/||"; cat "$RUNNER_TEMP/comment.md" ;;
esac
"""
"""Stands for GitHub's program: finds the comment FOUND, and prints its arguments and the body of what it writes."""


def run_action(repository: Path, tmp_path: Path, base: str, found: str = "", gpu: str = "a100-40gb") -> tuple[int, str, str, str]:
    """Runs the steps of the action as GitHub's runner does: exit code of the check, its text, summary, and comment.

    ``found`` is the number of the comment that an earlier run wrote.
    """
    action = yaml.safe_load((ROOT / ".github" / "actions" / "fits" / "action.yml").read_text())
    temp = tmp_path / "runner"
    programs = temp / "peakcast" / "bin"
    programs.mkdir(parents=True)
    call = "import sys; from predictor.cli import main; sys.exit(main())"
    for name, body in {"peakcast": f'exec {sys.executable} -c "{call}" "$@"', "gh": GH}.items():
        program = programs / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    summary = temp / "summary.md"
    env = os.environ | {"RUNNER_TEMP": str(temp), "GITHUB_STEP_SUMMARY": str(summary), "FILES": "configs/*.yaml",
                        "GPU": gpu, "OPTIONS": "", "BASE": base, "NUMBER": "7",
                        "GITHUB_REPOSITORY": "somebody/something", "FOUND": found, "PYTHONPATH": str(ROOT),
                        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    check, comment = (subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], env=env, cwd=repository, text=True,
                                     capture_output=True) for step in action["runs"]["steps"][2:])
    return check.returncode, check.stdout + check.stderr, summary.read_text(), comment.stdout


def test_the_action_fails_with_one_line_and_comments_what_changed(repository, tmp_path):
    origin = tmp_path / "origin"
    git("clone", "--quiet", "--bare", str(repository), str(origin))
    git("remote", "add", "origin", str(origin))
    (repository / "configs" / "job.yaml").write_text(JOB.format(batch=24))
    code, text, summary, comment = run_action(repository, tmp_path, "main")
    assert "than at origin/main" in text and "since origin/main" in comment
    assert (code, text.count("\n")) == (1, 1)
    assert "does not fit a100-40gb" in text
    assert comment == ("api --silent --method POST repos/somebody/something/issues/7/comments -F body=@comment.md\n"
                       f"<!-- peakcast fits -->\n{summary}")
    assert "| ❌ | `configs/job.yaml` | a100-40gb | 47.75 GiB reserved of 39.39 GiB | +10.78 GiB" in comment


def test_the_action_judges_the_limit_where_the_base_cannot_be_fetched(repository, tmp_path):
    git("remote", "add", "origin", str(tmp_path / "nowhere"))
    (repository / "configs" / "job.yaml").write_text(JOB.format(batch=24))
    code, text, summary, _comment = run_action(repository, tmp_path, "main")
    warning, verdict = text.splitlines()
    assert (code, warning.startswith("::warning::nothing is compared with main, which cannot be fetched: fatal: ")) == (1, True)
    assert "does not fit a100-40gb" in verdict and "❌" in summary


def test_the_action_leaves_a_full_history_full(repository, tmp_path):
    origin = tmp_path / "origin"
    git("commit", "--quiet", "--allow-empty", "--message", "another")
    git("clone", "--quiet", "--bare", str(repository), str(origin))
    git("remote", "add", "origin", origin.as_uri())
    assert run_action(repository, tmp_path, "main")[0] == 0
    assert not (repository / ".git" / "shallow").exists()


def test_without_a_gpu_the_action_takes_that_of_each_file(repository, tmp_path):
    (repository / "configs" / "job.yaml").write_text(JOB.format(batch=24) + "gpu: h100-80gb\n")
    code, text, _, _ = run_action(repository, tmp_path, "", gpu="")
    assert (code, text.startswith("configs/job.yaml: fits h100-80gb: ")) == (0, True)


def test_the_action_edits_its_own_comment(repository, tmp_path):
    comment = run_action(repository, tmp_path, "", found="31")[3]
    assert comment.startswith("api --silent --method PATCH repos/somebody/something/issues/comments/31 ")


def test_the_action_installs_the_repository_that_it_is_in():
    steps = yaml.safe_load((ROOT / ".github" / "actions" / "fits" / "action.yml").read_text())["runs"]["steps"]
    assert (ROOT / ".github" / "actions" / "fits" / "../../..").resolve() == ROOT
    assert '"$GITHUB_ACTION_PATH/../../..' in steps[1]["run"]


def test_the_action_passes_inputs_as_variables_not_as_code():
    steps = yaml.safe_load((ROOT / ".github" / "actions" / "fits" / "action.yml").read_text())["runs"]["steps"]
    assert not any("${{" in step.get("run", "") for step in steps)


def run_hook(capsys, *changed: str) -> tuple[int, str]:
    """Runs what pre-commit runs for changed files by the recipe of the documentation; 0 and empty if it skips them."""
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    page = (ROOT / "docs/pages/how-to/in-ci.md").read_text()
    [recipe] = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
                if "repos:" in block]
    [own] = recipe["repos"][0]["hooks"]
    hook |= own
    files = [file for file in changed if re.search(hook["files"], file) and
             {".yaml": "yaml", ".json": "json", ".sh": "shell"}.get(Path(file).suffix) in hook["types_or"]]
    program, *words = shlex.split(hook["entry"])
    assert (program, hook["language"], own["id"]) == ("peakcast", "python", "peakcast-fits")
    if not files:
        return 0, ""
    code = main([*words, *hook["args"], *(files if hook["pass_filenames"] else ())])
    return code, capsys.readouterr().out


def test_the_hook_checks_the_training_of_a_changed_file(repository, capsys):
    code, text = run_hook(capsys, "configs/job.yaml")
    assert (code, text.startswith("configs/job.yaml: fits a100-40gb: ")) == (0, True)


def test_the_hook_checks_the_training_that_names_a_changed_deepspeed_config(repository, capsys):
    Path("configs/job.yaml").write_text(JOB.format(batch=16).replace("zero_stage: 2", "deepspeed: configs/zero.json"))
    Path("configs/zero.json").write_text('{"zero_optimization": {"stage": 0}, "bf16": {"enabled": true}}')
    code, text = run_hook(capsys, "configs/zero.json")
    assert (code, text.count("\n")) == (1, 1) and text.startswith("configs/job.yaml: does not fit a100-40gb: ")


def test_the_hook_leaves_other_files_alone(repository, capsys):
    assert run_hook(capsys, "configs/notes.md", "other/job.yaml") == (0, "")
