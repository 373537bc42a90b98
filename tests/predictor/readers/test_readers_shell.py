"""Shell scripts are read as a shell runs them; values that only a run decides are named in an error."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import readers
from predictor.common.errors import InputError
from predictor.readers import shell
from tests.predictor.bounds import bounded_time

TRAIN = "train.py --model_name_or_path gpt2 --max_length 64 --output_dir x --per_device_train_batch_size $BS"
CONDITION = '{0}: --per_device_train_batch_size is "$BS": BS is set under a condition in line {1}: say its value (write it in place of $BS), or give ' \
    '--per-device-train-batch-size'


@pytest.fixture
def read(tmp_path):
    def result(*lines: str):
        path = tmp_path / "job.sh"
        path.write_text("\n".join(lines) + "\n")
        return readers.read(path=str(path))
    return result


def error_of(read, *lines: str) -> str:
    with pytest.raises(InputError) as caught:
        read(*lines)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("lines, at", [
    (["BS=8", 'if [ "$1" = small ]; then', "  BS=4", "fi"], 3),
    (["BS=8", "case $1 in", "  small|tiny) BS=4 ;;", "  *) ;;", "esac"], 3),
    (["BS=8", "if (( NGPU > 1 )); then BS=4; else BS=2; fi"], 2),
    (["for BS in 2 4 8; do echo; done"], 1),
    (["BS=8", "while read line; do BS=$line; done < list"], 2),
    (["BS=8", '[ "$1" = small ] && BS=4'], 2),
    (["BS=8", '[ "$1" = small ] &&', "BS=4"], 3),
    (["BS=8", "test -n x || { BS=4; }"], 2),
    (["BS=8", "small() {", "  BS=4", "}", "small"], 3),
])
def test_a_variable_that_is_set_under_a_condition_is_unknown(read, tmp_path, lines, at):
    assert error_of(read, *lines, f"python {TRAIN}") == CONDITION.format(tmp_path / "job.sh", at)


@pytest.mark.parametrize("lines", [
    ["BS=8", "((BS/=2))"], ["BS=8", "read BS"], ["N=8", "((BS=N*2))"], ["let BS=16"], ["printf -v BS %d 16"],
    ["read -r BS <<< 16"], ["IFS=, read -r BS ACC <<< 16,2"], ["mapfile -t BS < <(echo 16)"], ["readarray -t BS <<< 16"],
    ["declare -n R=BS", "R=16"], ["BS=4", "export $(cat .env | xargs)"], ["export $(grep -v '^#' .env)"],
    ["BS=4", 'eval "$(cat .env)"'], ["eval $(cat .env)"],
])
def test_a_variable_that_a_command_may_set_is_unknown_whatever_its_default_is(read, lines):
    said = error_of(read, *lines, f"python {TRAIN.replace('$BS', '${BS:-2}')}")
    assert '--per_device_train_batch_size is "$BS": BS is set by a command in line' in said or \
        "BS may be set by a command's output, which is not read (line" in said


def test_a_loop_that_changes_a_variable_makes_it_unknown_inside(read, tmp_path):
    said = error_of(read, "BS=2", "while true; do", f"python {TRAIN}", "BS=$((BS*2))", "done")
    assert said.startswith(f'{tmp_path / "job.sh"}: --per_device_train_batch_size is "$BS": BS is set under a condition')


@pytest.mark.parametrize("lines", [
    ["BS=8; if true; then OUT=x; fi"],
    ["if true; then BS=4; fi; BS=8"],
    ["BS=8", "(BS=4; echo $BS)"],
    ["BS=8", "if (( BS > 4 )); then echo $BS; fi"],
    ["cd somewhere && BS=8"],
    ["cat <<EOF", "BS=4", "EOF", "BS=8"],
    ["BS=${BS:-8}"], [": ${BS:=8}"], ["BS=$((2*4))"], ["N=16", "BS=$(( (N - 0) / 2 ))"], ["BS='8'"],
    ["BS=$((${N:-2} * $(expr 2 + 2)))"], ["N=4", "BS=$(expr 32 / $N)"], ["BS=`expr 2 \\* \\( 1 + 3 \\)`"], ["N=2", 'BS="$(expr 16 / "$N")"'], ['BS="${N:-8}"'],
    ["A=(2 8)", "BS=${A[1]}"], ['eval "BS=8"'], ["BS=8 # not 4"], ["export BS=8; echo"],
])
def test_what_the_text_decides_is_read(read, lines):
    assert read(*lines, f"python {TRAIN}; echo done")[0]["per_device_train_batch_size"] == 8


def test_inside_a_branch_its_own_variables_are_known(read):
    assert read("BS=8", "if true; then BS=4", f"python {TRAIN}", "fi")[0]["per_device_train_batch_size"] == 4


@pytest.mark.parametrize("lines", [
    [f'cd X && deepspeed --num_gpus 4 {TRAIN.replace("$BS", "2")} --bf16 True'],
    ['ARGS="', "  --num_gpus 4", '  --no_local_rank"', f'LORA=; deepspeed $ARGS {TRAIN.replace("$BS", "2")} $LORA --bf16 True'],
    ["args=(", "  --bf16 True  # autocast", ")", "args+=(--per_device_train_batch_size 2)",
     f'deepspeed --num_gpus 4 {TRAIN.replace("--per_device_train_batch_size $BS", "")} "${{args[@]}}" "$@"'],
    [f'srun --jobid 3 bash -c "torchrun --nproc_per_node 4 {TRAIN.replace("$BS", "2")} --bf16 True"'],
    [f"torchrun --nproc_per_node 4 {TRAIN.replace('$BS', '2')} --bf16 True 2>&1 | tee log.txt &"],
])
def test_words_are_those_of_a_shell(read, lines):
    values, _ = read(*lines)
    assert (values["data_parallel_size"], values["per_device_train_batch_size"], values["mixed_precision"]) == (4, 2, "bf16")


@pytest.mark.parametrize("blank", ["\xa0", "\v", "\f", "\x85", "\u3000"])
def test_a_blank_that_no_shell_knows_is_part_of_a_word(read, tmp_path, blank):
    said = error_of(read, f"python {TRAIN.replace('$BS', '2')} {blank}--bf16 True")
    assert said.startswith(f"{tmp_path / 'job.sh'}: ") and "must be a whole number, not ['2', '" in said


@pytest.mark.parametrize("blank", ["' '", "\xa0", "' ' deepspeed"])
def test_a_blank_is_no_program(read, blank):
    assert "no line starts a training" in error_of(read, f"{blank} {TRAIN.replace('$BS', '2')}") or blank == "\xa0"


def test_a_quoted_variable_is_one_word(read, tmp_path):
    said = error_of(read, 'BS="2 4"', f"python {TRAIN.replace('$BS', chr(34) + '$BS' + chr(34))}")
    assert said == f'{tmp_path / "job.sh"}: --per_device_train_batch_size must be a whole number, not "2 4"'


@pytest.mark.parametrize("lines, message", [
    (["BS=$(nproc --all)", f"python {TRAIN}"], '--per_device_train_batch_size is "$(nproc…--all)": "$(nproc --all)" in line 1 is not understood: write its value, '
     "or give --per-device-train-batch-size"),
    (["if x; then", "A='--bf16 True'; fi", f"BS=2; python {TRAIN} $A"],
     '"$A" stands where flags may stand: A is set under a condition in line 2: say its value (write it in place of $A)'),
    ([f"BS=2; torchrun $A {TRAIN}"], '"$A" stands where flags may stand: the variable is not set there; write its value'),
    ([f"BS=2; torchrun --nproc_per_node $N {TRAIN}"], '--nproc_per_node is "$N": the variable is not set there; write its value, or give --data-parallel-size'),
    ([f"BS=2; accelerate launch --mixed_precision $P {TRAIN}"], '--mixed_precision is "$P": the variable is not set there; write its value'),
    (["A=x; if a; then A=deepspeed; fi", f"BS=2; $A {TRAIN}"],
     '"$A" starts a training: A is set under a condition in line 1: say its value (write it in place of $A)'),
    (["echo", 'echo "'], 'line 2: " has no end'),
    (["python train.py --output_dir x \\", "  --per_device_train_batch_size \\", "  $(expr 8 : 8)"],
     '--per_device_train_batch_size is "$(expr…8…:…8)": "$(expr 8 : 8)" in line 3 is not understood: write its value, or give --per-device-train-batch-size'),
    (["if x; then V=v16; fi", f"python {TRAIN.replace('$BS', '${V:1}')}"],
     '--per_device_train_batch_size is "${V:1}": V is set under a condition in line 1: say its value (write it in place of $V), or give --per-device-train-batch-size'),
    ([f"V=v16; python {TRAIN.replace('$BS', '${V:N}')}"],
     '--per_device_train_batch_size is "${V:N}": "${V:N}" in line 1 is not understood: write its value, or give --per-device-train-batch-size'),
    (["source env.sh", "BS=$((64 / (2 * SLURM_NNODES)))", f'srun bash -c "torchrun --nproc_per_node 4 {TRAIN}"'],
     '--per_device_train_batch_size is "$((64…/…(2…*…SLURM_NNODES)))": SLURM_NNODES in line 2 is not set: write its value, or give --per-device-train-batch-size'),
    (["echo", f'srun bash -c "torchrun {TRAIN} \'"'], "bash -c: line 1: ' has no end"),
])
def test_what_is_not_understood_is_named_with_its_line(read, tmp_path, lines, message):
    assert error_of(read, *lines) == f"{tmp_path / 'job.sh'}: {message}"


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize("line", ["export {}=expandable_segments:True; BS=2; python {}", "BS=2; {}=expandable_segments:True python {}"])
def test_settings_of_the_allocator_are_read(read, tmp_path, name, line):
    values, source = read(line.format(name, TRAIN))
    row = next(row for row in source.values if row.key == "allocator_conf")
    assert values["allocator_conf"] == row.value == "expandable_segments:True"
    assert source.place("allocator_conf") == f"{tmp_path / 'job.sh'}: {name}"


def test_a_variable_that_is_not_exported_is_in_no_environment(read):
    assert "allocator_conf" not in read("PYTORCH_ALLOC_CONF=expandable_segments:True", "BS=2", f"python {TRAIN}")[0]


def test_settings_of_the_allocator_under_a_condition_are_unknown(read, tmp_path):
    said = error_of(read, "if x; then export PYTORCH_ALLOC_CONF=expandable_segments:True; fi", f"BS=2; python {TRAIN}")
    assert said.startswith(f'{tmp_path / "job.sh"}: PYTORCH_ALLOC_CONF is "$PYTORCH_ALLOC_CONF": PYTORCH_ALLOC_CONF is set under')


def test_accelerates_file_is_sought_beside_the_script(read, tmp_path):
    (tmp_path / "a.yaml").write_text("num_processes: 8\n")
    assert read("BS=2", f"accelerate launch --config_file a.yaml {TRAIN}")[0]["data_parallel_size"] == 8
    said = error_of(read, "BS=2", f"accelerate launch --config_file b.yaml {TRAIN}")
    assert said == f'{tmp_path / "job.sh"}: --config_file names "b.yaml", and there is no such file'


def test_a_stage_that_nothing_fills_in_is_named(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text('output_dir: x\ndeepspeed: {"zero_optimization": {"stage": "auto"}}\n')
    with pytest.raises(InputError, match='job.yaml: deepspeed: zero_optimization.stage is "auto", and nothing fills it in'):
        readers.read(path=str(path))


WORDS = st.text(alphabet="ab$ {}()\"'\\;&|<>#\n=*@[]:-+`1if", max_size=60)


@settings(max_examples=300, deadline=None)
@given(WORDS)
def test_any_text_has_commands_or_is_one_line(text):
    try:
        shell.commands(text, "job.sh")
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("word", ["if", "!", "{", "time"])
def test_the_time_grows_with_the_words_and_not_with_their_square(word):
    with bounded_time(), suppress(InputError):
        shell.commands(f"{word} " * 20_000, "job.sh")


PIECES = st.sampled_from(["A=1;", "A='x  y';", "B=\"$A z\";", "B=;", "C=${A:-d};", "C=${B:-'e  f'};", "C=${D:=g};", "C=${A:1};", "C=${A: -3:2};", "p ${A:0:9} \"${C:2:1}\";", "D=(x \"y z\");", "D+=($A);",
                          "A=$((2*3+4));", "(A=9);", "p $A;", "p \"$A\";", "p a$B\"$A\"c;", "p \"${D[@]}\" ${D[*]};", "p '$A' \\$A;", "p \"$A\\\"\";"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")
@settings(max_examples=25, deadline=None)
@given(st.lists(PIECES, min_size=2, max_size=8))
def test_words_are_those_that_bash_makes(pieces):
    text = "A=0; B=b; C=c; D=(d)\n" + "\n".join(pieces)
    ran = subprocess.run(["bash", "-c", f"p() {{ printf '<%s>' \"$@\"; echo; }}\n{text}"], capture_output=True, text=True, check=True)
    ours = ["".join(f"<{word}>" for word in command.words[1:]) or "<>" for command in shell.commands(text, "x")]
    assert ours == ran.stdout.splitlines()


def test_messages_of_what_was_not_compared_have_file_and_keys(tmp_path, capsys):
    from predictor import cli

    (tmp_path / "z.json").write_text('{"zero_optimization": {"stage": 3}}')
    path = tmp_path / "job.sh"
    path.write_text("deepspeed --num_gpus 1 llava/train/train.py --model_name_or_path lmsys/vicuna-7b-v1.5 --vision_tower openai/clip-vit-large-patch14-336 "
                    "--mm_projector_type mlp2x_gelu --bf16 True --lora_enable True --bits 4 --deepspeed z.json --output_dir x\n")
    assert cli.main(["predict", "--from", str(path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"peakcast: error: {path}: --bits, --deepspeed: zero_stage 3: not predicted with quantization yet")


def test_a_model_that_is_not_known_is_named_with_file_and_key(tmp_path, capsys):
    from predictor import cli

    path = tmp_path / "job.yaml"
    path.write_text("output_dir: x\nmodel_name_or_path: gpt22\nmax_length: 64\n")
    assert cli.main(["predict", "--from", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"peakcast: error: {path}: model_name_or_path: model 'gpt22': not a known name")


@pytest.mark.parametrize("lines, at, what", [
    (["  # --bf16 True \\", "  --seed 4"], 2, "a comment ends the command here: bash runs it without what follows; move it out"),
    (["# a", "  # b", '  "$@"'], 2, "a comment ends the command here: bash runs it without what follows; move it out"),
    (["  --bf16 True \\ ", "  --seed 4"], 2, "a blank behind the backslash ends the command here: bash runs it without what follows; take it out"),
])
def test_a_command_that_ends_before_it_is_meant_to_is_refused(read, tmp_path, lines, at, what):
    assert error_of(read, f"BS=2; python {TRAIN} \\", *lines) == f"{tmp_path / 'job.sh'}: line {at}: {what}"


@pytest.mark.parametrize("lines", [[f"BS=8; python {TRAIN} \\", "  # --bf16 True"], ["BS=8 && \\", "# the run", f"python {TRAIN}"],
                                   ["BS=8; A=(--seed 4 \\", "  # --bf16 True", ")", f"python {TRAIN} ${{A[@]}}"]])
def test_a_comment_that_cuts_nothing_off_is_passed(read, lines):
    assert read(*lines)[0]["per_device_train_batch_size"] == 8


@pytest.mark.parametrize("lines", [["BS=4", "source env.sh"], ["", ". env.sh"], ["", 'source env.sh; BS="${BS:-4}"'],
                                   ["BS=4", "[ -f env.sh ] && . env.sh"], ["", "source env.sh; BS+=.4"]])
def test_a_variable_that_a_sourced_file_may_set_is_unknown(read, tmp_path, lines):
    assert "BS may be set by env.sh, which is not read (line 2): say its value" in error_of(read, *lines, f"python {TRAIN}")


@pytest.mark.parametrize("line", ["source ~/venv/bin/activate", "source activate myenv", ". .venv/bin/activate",
                                  'source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate x'])
def test_activating_an_environment_sets_no_variable_of_the_script(read, line):
    assert read("export BS=8", line, f"python {TRAIN}")[0]["per_device_train_batch_size"] == 8
    said = error_of(read, line, f"python {TRAIN.replace('$BS', '$CONDA_SHLVL')}")
    assert "CONDA_SHLVL may be set by" in said and "which is not read (line 1)" in said


@pytest.mark.parametrize("line", [
    'eval "$(conda shell.bash hook)"', 'eval "$(micromamba shell hook --shell bash)"', 'eval "$($(conda info --base)/bin/conda shell.bash hook)"',
    "__conda_setup=\"$('/opt/conda/bin/conda' 'shell.bash' 'hook' 2> /dev/null)\"; eval \"$__conda_setup\"", "conda activate llava",
])
def test_condas_functions_set_no_variable_of_the_script(read, line):
    assert read("export BS=8 CONDA_PREFIX=/x", line, f"python {TRAIN}")[0]["per_device_train_batch_size"] == 8
    assert "CONDA_PREFIX may be set by" in error_of(read, "CONDA_PREFIX=8", line, f"python {TRAIN.replace('$BS', '$CONDA_PREFIX')}")


def test_a_module_that_is_loaded_sets_no_variable_of_the_script(read):
    assert read("BS=8", "module load cuda/12.1", f"python {TRAIN}")[0]["per_device_train_batch_size"] == 8


@pytest.mark.parametrize("output", ["$(conda shell.bash hook; cat .env)", "$(cat .env; /x/conda shell.bash hook)", "$(conda shell.bash hook $(cat x))",
                                    "$(conda env config vars list)", "$(ssh-agent -s)"])
def test_what_is_more_than_condas_functions_may_set_anything(read, output):
    assert "BS may be set by a command's output, which is not read (line 2)" in error_of(read, "BS=8", f'eval "{output}"', f"python {TRAIN}")


def test_the_allocators_settings_that_a_sourced_file_names_are_unknown(read, tmp_path):
    before, after = ["export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64", 'source "$(dirname "$0")/env.sh"'], ["BS=8", f"python {TRAIN}"]
    assert read(*before, *after)[0]["allocator_conf"] == "max_split_size_mb:64"
    (tmp_path / "env.sh").write_text("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n")
    for lines in (before, ["", "set -a; . env.sh"]):
        said = error_of(read, *lines, *after)
        assert "PYTORCH_CUDA_ALLOC_CONF may be set by" in said and "env.sh, which is not read (line 2): say its value" in said
    again = [*before, "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", *after]
    assert read(*again)[0]["allocator_conf"] == "expandable_segments:True"


SETTLED = {"data_parallel_size": 4, "model": "gpt2", "per_device_train_batch_size": 2, "lora": {"r": 4}, "dtype": "fp32"}
OPEN = ("[ $1 ] && N=8 M=x B=8 R=8 D=bfloat16", "torchrun --nproc_per_node $N train.py --model_name_or_path $M --use_peft "
        "--per_device_train_batch_size $B --lora_r $R --torch_dtype $D --max_length 64 --output_dir x")


def test_an_option_settles_the_variable_that_feeds_its_key(tmp_path):
    (tmp_path / "job.sh").write_text("\n".join(OPEN))
    found, source = readers.read(path=str(tmp_path / "job.sh"), options=SETTLED)
    assert (found["model"], found["per_device_train_batch_size"], found["dtype"]) == ("gpt2", 2, "fp32")
    assert found["lora"]["r"] == 4 and found["lora"]["target_modules"] == ["c_attn"]
    assert {row.key: row.value for row in source.values}["per_device_train_batch_size"] == "$B"


@pytest.mark.parametrize("options", [{"zero_stage": 2}, {"deepspeed": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}}])
def test_a_deepspeed_config_that_is_not_known_is_settled_by_ours(tmp_path, options):
    (tmp_path / "job.sh").write_text(f"[ -f x ] && D=x.json\ndeepspeed --num_gpus 2 {TRAIN.replace('$BS', '2')} --bf16 True --deepspeed $D")
    found, _ = readers.read(path=str(tmp_path / "job.sh"), options=options)
    assert found["deepspeed"]["zero_optimization"] == {"stage": 2} and found["dtype"] == "bf16"


@pytest.mark.parametrize(("key", "said"), [
    ("data_parallel_size", '--nproc_per_node is "$N"'), ("model", '--model_name_or_path is "$M"'),
    ("per_device_train_batch_size", '--per_device_train_batch_size is "$B"'), ("lora", '--lora_r is "$R"'),
    ("dtype", '--torch_dtype is "$D"')])
def test_a_variable_that_no_option_settles_is_refused(tmp_path, key, said):
    (tmp_path / "job.sh").write_text("\n".join(OPEN))
    with pytest.raises(InputError) as caught:
        readers.read(path=str(tmp_path / "job.sh"), options={name: item for name, item in SETTLED.items() if name != key})
    assert said in str(caught.value) and "or give " in str(caught.value)


@pytest.mark.parametrize("lines", [
    ["args=(", "  --a 1 # one", "  # --b 2", "  --c '3' # don't (", ")", 'show "${args[@]}"'],
    ["args=(--a 1 \\", " # note", " --b 2", ")", 'show "${args[@]}"'],
    ["cd / && # then", "# and", "show --a 1"], ["true && \\", "# note", "show --a 1"], ["true # && show", "show --a 1 # 2"],
    ["N=2", "show --a $(expr 16 / $N) `expr 2 \\* 3 + 1` $(expr 2 '*' 3)", "show $(expr 7 / 2)"],
])
def test_comments_and_expr_are_what_they_are_to_bash(lines):
    text = "\n".join(lines)
    real = subprocess.run(["bash", "-c", 'show() { printf "%s\\n" "$@"; }\n' + text], capture_output=True, text=True, check=True)
    words = [word for one in shell.commands(text, "job.sh") if one.words[0] == "show" for word in one.words[1:]]
    assert words == real.stdout.splitlines()


def test_a_comment_that_swallows_the_backslash_is_refused(read, tmp_path):
    said = error_of(read, "BS=2", f"python {TRAIN} # now \\", "  --bf16 True")
    assert said == f"{tmp_path / 'job.sh'}: line 2: a comment ends the command here: bash runs it without what follows; move it out"


@pytest.mark.parametrize(("lines", "at"), [
    (["N=$(cat n m)", f"python {TRAIN} \\", "  --gradient_accumulation_steps $N \\", "  --lora_r $(cat r s)"], 1),
    (["NPROC=`nproc`", f"python {TRAIN} \\", "  --bf16 True \\", "  --gradient_accumulation_steps $(expr 3 : 5)"], 4),
    ([f"python {TRAIN} --gradient_accumulation_steps {{2,4}}"], 1),
    (["[[ -n \"${X:-}\" ]] && N=4", f"python {TRAIN} --gradient_accumulation_steps $N"], 1)])
def test_a_message_names_the_line_of_what_it_is_about(read, lines, at):
    said = error_of(read, *[line.replace("$BS", "2") for line in lines])
    assert "--gradient_accumulation_steps is " in said and f" in line {at}" in said


def test_a_script_given_to_a_shell_is_read_by_from(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("torchrun train.py")
    with pytest.raises(InputError, match=f"{script} is a shell script: give it as --from {script}, which reads it"):
        readers.read(words=["bash", str(script)])
