"""Strategies for command lines of trainings, and for the shell scripts that hold them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.attack import values
from tests.attack.documents import BESIDE, LAUNCHER_OPTIONS, MOST_CHARACTERS, configurations
from tests.attack.inputs import Input

PROGRAMS = {
    "llava": (("deepspeed", "llava/train/train_mem.py"), ("python", "llava/train/train.py"), ("torchrun", "llava/train/train_mem.py")),
    "transformers": (("torchrun", "train.py"), ("python", "train.py"), ("python3", "-m", "train"), ("accelerate", "launch", "train.py"), ("deepspeed", "run_clm.py")),
    "llamafactory": (("llamafactory-cli", "train"), ("lmf", "train")),
    "swift": (("swift", "sft"), ("swift", "pt"), ("swift", "rlhf"), ("python", "-m", "swift.cli.sft")),
    "axolotl": (("axolotl", "train", "c.yaml"), ("accelerate", "launch", "-m", "axolotl.cli.train", "c.yaml")),
    "qwenvl": (("torchrun", "qwenvl/train/train_qwen.py"),),
    "qwen_series": (("deepspeed", "src/train/train_sft.py"),),
    "trl": (("trl", "sft"), ("accelerate", "launch", "trl/scripts/sft.py"), ("trl", "dpo")),
}
"""Format -> commands that start its trainings."""
BEFORE = ("CUDA_VISIBLE_DEVICES=0,1", "NPROC_PER_NODE=4", "FORCE_TORCHRUN=1", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "nohup", "env", "exec",
          "MAX_PIXELS=1003520", "X=", "srun", "srun --jobid 3", "sudo", "time", "numactl -N 0", "PYTORCH_ALLOC_CONF=max_split_size_mb:x", "OMP_NUM_THREADS=8")
VARIABLES = ("NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES", "MAX_PIXELS", "IMAGE_MAX_TOKEN_NUM", "VIDEO_MAX_PIXELS", "SWIFT_SINGLE_DEVICE_MODE", "FORCE_TORCHRUN", "PET_NPROC_PER_NODE",
             "PET_NNODES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "WORLD_SIZE", "ACCELERATE_USE_FSDP", "OMP_NUM_THREADS")
"""Environment variables of trainings, some of which are read."""
AFTER = ("2>&1 | tee log", "> log", "&", "; echo done", "|| exit 1", "&& sleep 1", "<<EOF\nx\nEOF", '"$@"', "$ARGS", "${A[@]}", "# c", "\\", "\\ ", "`x`", ">", "(", "\xa0--bf16 True", "\u3000", "--x\x0b1", "\x85")
QUIET = (
    "", "# c", "set -ex", "cd x", "export BS=2", "BS=8", "BS=$((2*4))", "A=(1 2 3)", "ARGS=\"--bf16 True\"", "source env.sh", "if [ -n \"$1\" ]; then BS=4; fi", "echo $BS",
    "case $1 in a) BS=1;; *) BS=2;; esac", "f() { BS=1; }", "BS=${BS:-8}", "#SBATCH --gpus=8", "cat <<EOF\nx\nEOF", "BS=$(nproc)", "N=$SLURM_NNODES", "pip install x")
"""Lines of shell scripts that are whole."""
LINES = (
    "BS=8", "BS=$((2*4))", "BS=$((BS/0))", "BS=$(nproc)", "BS=${BS:-8}", "BS=${1:-4}", "export BS=2", ": ${BS:=8}", "A=(1 2 3)", "A+=(x)", "BS=${A[1]}", "BS=${#A[@]}",
    "declare -A M=([a]=1)", "BS=${M[a]}", "local BS=4", "readonly BS=4", "unset BS", "read BS", "let BS=4", "((BS++))", "BS+=1", "set -ex", "cd x", "source env.sh",
    ". env.sh", "eval BS=4", "if [ -n \"$1\" ]; then BS=4; fi", "case $1 in a) BS=1;; *) BS=2;; esac", "for BS in 1 2; do", "done", "while true; do", "f() {", "}",
    "if true; then", "else", "fi", "(", ")", "cat <<EOF", "EOF", "cat <<'E O'", "#!/bin/bash", "#SBATCH --gpus=8", "# c \\", "\\", "ARGS=\"--bf16 True\"",
    "ARGS='--bf16 True --tf32 x'", "BS=`expr 2 \\* 4`", "BS=${BS%x}", "BS=${BS##*/}", "BS=${BS/x/y}", "BS=${BS:0:1}", "BS=${BS^^}", "BS=${!BS}", "BS=$'a\\n'", "BS=\"a",
    "BS='", "echo \"$(", "alias x=y", "trap x EXIT", "export $(cat .env)", "GPUS=$(nvidia-smi -L | wc -l)", "N=$SLURM_NNODES", "{ BS=3; }", "! true", "[[ x =~ y ]] && BS=9",
    "select BS in 1; do", "time BS=1", "BS=1 echo", "A=\\\n8", "printf -v BS %d 3", "mapfile -t A < x", "until x; do", "function g { BS=1; }", "g", "wait", "exit 0", "BS=١")
"""Lines of shell scripts, many of them parts of statements."""
PLACES_OF_VALUES = ("$BS", "${BS}", "\"$BS\"", "'$BS'", "$((BS*2))", "$(expr $BS + 1)", "${BS:-8}", "${A[0]}", "${BS:?x}", "$BS$BS", "${BS}x", "$1", "$", "${", "$((", "\\$BS")


VALUES_OF_VARIABLES = values.mostly(st.sampled_from(("1", "2", "8", "1003520", "0,1", "expandable_segments:True")), st.one_of(
    st.sampled_from(values.ODD_DIGITS), st.sampled_from(values.ODD_TEXTS), st.sampled_from(values.ODD_DIGITS).map("max_split_size_mb:{}".format)), 3)


@st.composite
def commands(draw: st.DrawFn, name: str) -> list[str]:
    """Words of a command that starts a training in a framework's format."""
    program = list(draw(st.sampled_from(PROGRAMS[name])))
    options: list[str] = []
    launcher = program[0]
    if launcher in LAUNCHER_OPTIONS and values.seldom(draw, 2):
        with_value, without = LAUNCHER_OPTIONS[launcher]
        for option in draw(st.lists(st.sampled_from(with_value), max_size=2)):
            options += [option, draw(values.mostly(st.sampled_from(("1", "2", "8", "0", "x", "auto", "x.yaml", "here.txt", "localhost:0,1", "bf16", "no", "", "--")),
                                                   st.sampled_from(values.ODD_DIGITS), 6))]
        options += draw(st.lists(st.sampled_from(without), max_size=1))
    at = 2 if launcher == "accelerate" else 1
    words = [*program[:at], *options, *program[at:]]
    for key, item in draw(configurations(name)).items():
        words += draw(flags(str(key), item))
    if values.seldom(draw, 3):
        words = [*(f"{variable}={draw(VALUES_OF_VARIABLES)}" for variable in draw(st.lists(st.sampled_from(VARIABLES), min_size=1, max_size=2))), *words]
    if values.seldom(draw, 12):
        words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from((*values.ODD_TEXTS, "c.yaml", "a=b", "--a=b"))))
    return words


@st.composite
def flags(draw: st.DrawFn, key: str, item: Any) -> list[str]:
    """A key and its value as words of a command line."""
    hyphens = draw(st.sampled_from(("-", ""))) if values.seldom(draw, 60) else "--"
    flag = hyphens + draw(st.sampled_from((key, key, key.replace("_", "-"))))
    if isinstance(item, list):
        return [flag, *(values.with_raw(str(inner))[:MOST_CHARACTERS] for inner in item[:4])]
    text = values.as_json(item) if isinstance(item, dict) else values.with_raw(str(item))
    text = text[:MOST_CHARACTERS]
    if item is True and draw(st.booleans()):
        return [flag]
    return [f"{flag}={text}"] if values.seldom(draw, 6) else [flag, text]


@st.composite
def command_lines(draw: st.DrawFn, name: str) -> Input:
    """A command as the words behind ``--``: read, and in one of twelve cases predicted."""
    words = draw(commands(name))
    files = BESIDE | {"c.yaml": b"base_model: llava-1.5-7b\nsequence_len: 512\nadapter: lora\ndatasets: []\n"}
    if not values.seldom(draw, 12):
        return Input(draw(st.sampled_from(("words", "words", "words_on_gpus"))), tuple(words), files)
    return Input("command", ("predict", "--gpu", "a100-80gb", "--", *words), files)


def _quoted(word: str, how: int) -> str:
    if word == "" or how < 38 and not all(c.isalnum() or c in "-_./=," for c in word):
        return "'" + word.replace("'", "'\\''") + "'"
    return {37: f'"{word}"', 36: f"'{word}'"}.get(how, word)


@st.composite
def scripts(draw: st.DrawFn) -> Input:
    """Shell scripts: lines before a command, the command with expansions for values, and lines after it."""
    name = draw(st.sampled_from(tuple(PROGRAMS)))
    words = [_quoted(word, draw(st.integers(0, 39))) for word in draw(commands(name))]
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        words[draw(st.integers(min(2, len(words) - 1), len(words) - 1))] = draw(st.sampled_from(PLACES_OF_VALUES))
    parts = [draw(st.sampled_from(BEFORE))] if values.seldom(draw, 4) else []
    separator = draw(st.sampled_from((" ", " ", " \\\n    ", "  ", "\t", " \\\n\n")))
    command = separator.join([*parts, *words])
    if values.seldom(draw, 4):
        command += " " + draw(st.sampled_from(AFTER))
    if values.seldom(draw, 8):
        command = draw(st.sampled_from(('bash -c "{}"', "srun bash -c '{}'", "if true; then\n{}\nfi", "f() {\n{}\n}\nf", "({})", "for BS in 1 2; do {}; done",
                                        "[ -d x ] && {}", "eval \"{}\"", "cat > x.sh <<E\n{}\nE\nbash x.sh", "{}\n{}", "ssh host {}", "{} | {}", "! {}"))).replace("{}", command)
    some = st.lists(st.sampled_from(LINES if values.seldom(draw, 4) else QUIET), max_size=4)
    lines = [*draw(some), command, *draw(some)]
    text = draw(st.sampled_from(("\n", "\n", "\n", "\n", "\r\n", "; "))).join(lines) + draw(st.sampled_from(("\n", "")))
    content = draw(values.lengthened(draw(values.damaged(text.encode("utf-8", "surrogatepass")))))
    file = draw(st.sampled_from(("s.sh", "s.slurm", "s.bash")))
    files = BESIDE | {file: content, "c.yaml": b"base_model: gpt2\nsequence_len: 64\n", "env.sh": b"export BS=4\n"}
    if not values.seldom(draw, 25):
        return Input("read", (file,), files)
    return Input("command", ("predict", "--from", file, "--gpu", "h100-80gb", "--json"), files)
