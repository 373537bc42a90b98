"""Strategies for files that programs write: snapshots, formulas, profiles, records, rows, samples, logs, configurations."""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import json
import lzma
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from predictor.common import arrays
from predictor.formula import store
from predictor.snapshot.recording import RecordingAllocator
from tests.attack import values
from tests.attack.documents import MODELS, written
from tests.attack.inputs import Input
from tests.predictor.oom import wordings

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "profiles"
GIB = 1 << 30


@lru_cache
def rows(file: str, most: int = 40) -> tuple[Any, ...]:
    """The shortest of the JSON lines of a file below ``profiles/``."""
    lines = sorted((PROFILES / file).read_text().splitlines(), key=len)[:most]
    return tuple(json.loads(line) for line in lines)


# memory snapshots ------------------------------------------------------------------------------------------------

@st.composite
def snapshots(draw: st.DrawFn) -> Input:
    """Memory snapshots of a short history, changed anywhere, and replayed in half of the cases."""
    allocator, blocks = RecordingAllocator(), []
    for size in draw(st.lists(st.sampled_from((0, 512, 3000, 1 << 20, 5 << 20, 40 << 20)), max_size=12)):
        if size or not blocks:
            blocks.append(allocator.malloc(size or 1, draw(st.integers(0, 2))))
        else:
            allocator.free(blocks.pop(draw(st.integers(0, len(blocks) - 1))))
    document = draw(values.changed(allocator.snapshot(), 2))
    if values.seldom(draw, 15) and isinstance(document, dict):  # a few bytes that stand for many entries
        document["device_traces"] = [[{"action": "alloc", "addr": 1, "size": 1, "stream": 0}] * draw(st.sampled_from((1, 10_000)))] * 1_000
    content = pickle.dumps(document, protocol=draw(st.integers(0, 5)))
    if values.seldom(draw, 25):
        content = nested_pickle(draw(st.sampled_from((b"", b"device_traces", b"segments", b"x"))), draw(st.sampled_from((21, 101, 400, 950, 3_000, 100_000))))
    content = draw(values.damaged(content))
    content = draw(st.sampled_from((bytes, bytes, bytes, lzma.compress, gzip.compress, bz2.compress)))(content)
    files = {"s.pickle": draw(values.damaged(content))}
    words = draw(st.sampled_from(((), ("--device", "0"), ("--json",), ("--capacity-bytes", "64MiB"), ("--allocator-conf", "expandable_segments:True"),
                                  ("--device", "9"), ("--allocator-conf", "roundup_power2_divisions:4"))))
    return draw(st.sampled_from((Input("snapshot", ("s.pickle",), files), Input("command", ("replay", "s.pickle", *words), files))))


def nested_pickle(key: bytes, depth: int) -> bytes:
    """A pickle of lists inside lists, which are the value of a key of a dictionary if one is named. Python's own pickler cannot nest so deeply."""
    lists = b"]" * depth + b"a" * (depth - 1)
    return b"\x80\x03" + (b"}X" + len(key).to_bytes(4, "little") + key + lists + b"s" if key else lists) + b"."


# formulas --------------------------------------------------------------------------------------------------------

@lru_cache
def small_formulas() -> tuple[dict[str, np.ndarray], ...]:
    """The arrays of the smallest shipped formulas."""
    paths = sorted(store.shipped_directory().glob("*.npz"), key=lambda path: (path.stat().st_size, path.name))[:4]
    return tuple(arrays.load(path)[0] for path in paths)


@lru_cache
def learned_formula() -> dict[str, np.ndarray]:
    """The arrays of a learned formula of five events. A process of its own makes it: that imports torch."""
    words = [sys.executable, "-m", "tests.attack.learned_formula"]
    content = subprocess.run(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=True).stdout
    return dict(np.load(io.BytesIO(content)))


@st.composite
def changed_arrays(draw: st.DrawFn, of: dict[str, np.ndarray]) -> bytes:
    """The file of a formula with values, types or shapes of some arrays changed, or its header."""
    content = {name: array.copy() for name, array in of.items()}
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(content)))
        array = content[name]
        if name == "header" or array.dtype == object:
            continue
        how = draw(st.integers(0, 8))
        if how < 4 and not array.size:
            continue
        if how < 4:
            array.flat[draw(st.integers(0, array.size - 1))] = draw(st.sampled_from((0, 1, -1, 2, 100, 127)))
        elif how == 4:
            del content[name]
        else:
            content[name] = {5: array.astype(np.float64), 6: array[:-1], 7: array.reshape(-1), 8: np.concatenate([array, array])}[how]
    if draw(st.booleans()):
        header = json.loads(of["header"].tobytes())
        if draw(st.booleans()):  # else few changes are among its terms, which sizes are computed from
            header |= {name: draw(values.changed(item)) for name, item in header.items() if name == "terms"}
        else:
            header = draw(values.changed(header))
        content["header"] = np.frombuffer(values.as_json(header).encode("utf-8", "surrogatepass"), np.uint8)
    if values.seldom(draw, 8):
        return with_other_shape(content, draw(st.sampled_from(sorted(content))))
    return draw(values.damaged(arrays.to_bytes(content)))


def with_other_shape(content: dict[str, np.ndarray], name: str) -> bytes:
    """The file of a formula in which one array's header says that it has a hundred million elements."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for member, array in content.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, array, allow_pickle=False)
            data = part.getvalue()
            if member == name:
                shape = str(array.shape).encode()
                data = data.replace(b"'shape': " + shape + b", }" + b" " * (9 - len(shape)), b"'shape': (100000000,), }", 1)
            archive.writestr(f"{member}.npy", data, zipfile.ZIP_LZMA)
    return stream.getvalue()


@st.composite
def formulas(draw: st.DrawFn) -> Input:
    """Files of traced formulas."""
    return Input("formula", ("f.npz",), {"f.npz": draw(changed_arrays(draw(st.sampled_from(small_formulas()))))})


@st.composite
def learned_formulas(draw: st.DrawFn) -> Input:
    """Files of learned formulas: read, and predicted in one of three cases."""
    files = {"f.npz": draw(changed_arrays(learned_formula()))}
    words = draw(st.sampled_from(((), ("--per-device-train-batch-size", "3", "--sequence-length", "96"), ("--gpu", "h100-80gb"))))
    if not values.seldom(draw, 3):
        return Input("learned", ("f.npz",), files)
    return Input("command", (draw(st.sampled_from(("predict", "explain"))), "f.npz", *words), files)


# profiles and records --------------------------------------------------------------------------------------------

@lru_cache
def profile() -> dict[str, Any]:
    """A shipped profile, with a few entries of each list."""
    document = json.loads((PROFILES / "h100-80gb/profile-emulated.json").read_text())
    return {name: item[:3] if isinstance(item, list) else item for name, item in document.items()}


@st.composite
def profiles(draw: st.DrawFn) -> Input:
    """Profiles: read, shown, or used in a prediction."""
    files = {"p.json": draw(written(draw(values.changed(profile())), "json"))}
    predicted = ("predict", "llava-1.5-7b", "--sequence-length", "1024", "--gpu", "h100-80gb", "--profile", "p.json")
    return draw(st.sampled_from((Input("profile", ("p.json",), files), Input("profile", ("p.json",), files),
                                 Input("command", ("profiles", "p.json"), files), Input("command", predicted, files))))


@st.composite
def records(draw: st.DrawFn) -> Input:
    """Records of one measured job."""
    of_campaign = [row["record"] for row in rows("h100-80gb/campaign.jsonl") if row.get("record")]
    document = draw(values.changed(draw(st.sampled_from(of_campaign))))
    files = {"r.json": draw(written(document, "json"))}
    return Input(draw(st.sampled_from(("record", "measurements"))), ("r.json",), files)


@st.composite
def lines(draw: st.DrawFn, file: str, target: str) -> Input:
    """Files of measured jobs, a line of JSON each; the last may be torn."""
    some = draw(st.lists(st.sampled_from(rows(file)), min_size=1, max_size=3))
    texts = [values.as_json(draw(values.changed(row))) for row in some]
    if values.seldom(draw, 8):
        texts.insert(0, draw(st.sampled_from(values.ODD_TEXTS)))
    text = "\n".join(texts) + draw(st.sampled_from(("\n", "\n", "")))
    return Input(target, ("m.jsonl",), {"m.jsonl": draw(values.damaged(text.encode("utf-8", "surrogatepass")))})


GATE = ('name = "x"', "minimum_cases = 4", "allocated_mape = 0.005", "reserved_worst = 1", "false_fits = 0", 'where = { gpu = "h100-80gb" }', "other_moments = 0",
        "allocated_mape = -1", "allocated_mape = nan", "x = 1", "name = 3", "where = 3", "where = {}", "minimum_cases = 1.5", 'where = { model = ["a"] }',
        "requested_worst = 1e400", "failure_probability = true", "name = \"a\nb\"", "= 1", "[gate]", "[[gate]]", "[[x]]", "# c", '"" = 1', "a.b.c = 1", "t = 2001-01-01", "a" + ".a" * 50_000 + " = 1",
        *(f"where = {'[' * depth}{']' * depth}" for depth in (21, 400, 3_000, 100_000)), *(f"where = {'{ a = ' * depth}1{' }' * depth}" for depth in (21, 400, 3_000, 100_000)),
        *(f"{key} = {text}" for key in ("minimum_cases", "allocated_mape") for text in (*values.ODD_DIGITS, "10" * 200, "0o7", "1e5", "-inf")))


@st.composite
def gates(draw: st.DrawFn) -> Input:
    """Files of gates, in TOML."""
    lines = ["[[gate]]", GATE[0], *draw(st.lists(st.sampled_from(GATE[1:7]), min_size=1, max_size=4, unique=True))]
    if values.seldom(draw, 2):
        lines += draw(st.lists(st.sampled_from(GATE[7:]), min_size=1, max_size=2))
    text = "\n".join(lines)
    return Input("gates", ("g.toml",), {"g.toml": draw(values.damaged(text.encode()))})


# samples and conversations ---------------------------------------------------------------------------------------

CELLS = ("812", "1", "0", "1e3", "", " ", "x", "4194305", '"', '"1', "768x1024", "768x1024 640x480", "1,2", "\0", "1\r", f"{values.DIGITS}x1", "٣x٣", *values.ODD_DIGITS)


@st.composite
def samples(draw: st.DrawFn) -> Input:
    """Files of a dataset's samples, as CSV, JSON and JSON lines; predicted in one of six cases."""
    how = draw(st.sampled_from(("csv", "json", "jsonl")))
    if how == "csv":
        head = draw(values.mostly(st.sampled_from(("tokens,images", "tokens", "images,tokens", "tokens,image_sizes")), st.sampled_from(
            ("token,images", "tokens,tokens", "", "a,b", "tokens;images", "tokens, images")), 10))
        columns = [st.sampled_from(("768x1024", "640x480 336x336") if name == "image_sizes" else ("0", "1", "2") if name == "images" else ("812", "1500", "3000"))
                   for name in head.split(",")]
        rows = draw(st.lists(st.tuples(*(values.mostly(column, st.sampled_from(CELLS), 8) for column in columns)), max_size=5))
        text = "\n".join([head, *map(",".join, rows), *([",".join(draw(st.lists(st.sampled_from(CELLS), max_size=4)))] if values.seldom(draw, 8) else [])])
    else:
        pictures = values.mostly(st.sampled_from((["768x1024"], "640x480 1x1", [336])), st.one_of(st.just([]), values.odd()))
        more = values.mostly(st.sampled_from((("images", st.integers(0, 3)), ("image_sizes", pictures))), st.just(("x", st.just(1))))
        one = more.flatmap(lambda row: st.fixed_dictionaries({"tokens": values.mostly(st.integers(1300, 3000)), row[0]: values.mostly(row[1])}))
        listed = draw(values.mostly(st.lists(values.mostly(draw(st.sampled_from((one, st.integers(700, 4000))))), max_size=5)))
        text = values.as_json(listed) if how == "json" or not isinstance(listed, list) else "\n".join(map(values.as_json, listed))
    name = "l.txt" if values.seldom(draw, 20) else f"l.{how}"
    files = {name: draw(values.damaged(text.encode("utf-8", "surrogatepass")))}
    if not values.seldom(draw, 6):
        return Input("samples", (name,), files)
    words = draw(st.sampled_from(((), ("--steps", "2", "--seeds", "1"), ("--epochs", "1", "--seeds", "1", "--sampling", "sequential"), ("--steps", "0"), ("--seed", "-1"),
                                  ("--epochs", "nan"), ("--epochs", values.DIGITS), ("--steps", "٣"), ("--seed", values.DIGITS), ("--steps", "1", "--drop-last", "--seeds", "1"))))
    return Input("command", ("predict", "llava-1.5-7b", "--per-device-train-batch-size", "2", "--gpu", "h100-80gb", "--samples", name, *words), files)


@st.composite
def conversations(draw: st.DrawFn) -> Input:
    """Files of conversations, for inference."""
    turn = st.fixed_dictionaries({"tokens": values.mostly(st.integers(700, 5000)), "new_tokens": values.mostly(st.integers(1, 99))}, optional={
        "images": values.mostly(st.integers(0, 1)), "role": values.mostly(st.sampled_from(("user", "tool")))})
    document: Any = {"turns": draw(values.mostly(st.lists(values.mostly(turn), min_size=1, max_size=4)))}
    if values.seldom(draw, 15):
        document = draw(st.sampled_from((document["turns"], {**document, "x": 1}, {"turn": document["turns"]})))
    return Input("workload", ("w.json",), {
        "w.json": json.dumps({"model": draw(st.sampled_from(MODELS)), "mode": "inference", "conversation": "c.yaml"}).encode(), "c.yaml": draw(written(document))})


# logs ------------------------------------------------------------------------------------------------------------

WORDINGS: tuple[Callable[..., str], ...] = tuple(getattr(wordings, name) for name in dir(wordings) if name.startswith("torch_"))
AROUND = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    loss.backward()", "  File \"/x/torch/nn/modules/module.py\", line 1",
          "[rank3]: ", "[default0]:", "0: ", "(RayTrainWorker pid=3) ", "RuntimeError: CUDA error: out of memory", "ncclUnhandledCudaError: Cuda failure 2 'out of memory'",
          "CUBLAS_STATUS_ALLOC_FAILED", "Killed", "", "step 3 | loss 2", "CUDA out of memory", "torch.OutOfMemoryError:", "Tried to allocate 1.00 GiB", "GPU 0 has a total")


@st.composite
def logs(draw: st.DrawFn) -> Input:
    """Logs with out-of-memory messages of several releases, whole and damaged."""
    sizes = st.one_of(st.integers(0, 90 * GIB), st.sampled_from((0, 1, 1024, GIB, 2**63, 10**25)))
    texts = []
    if values.seldom(draw, 12):
        texts.append(f"CUDA out of memory. Tried to allocate {draw(st.sampled_from(values.ODD_DIGITS))} GiB. GPU {draw(st.sampled_from(('0', *values.ODD_DIGITS)))} has a total capacity of 1 GiB")
    for wording in draw(st.lists(st.sampled_from(WORDINGS), max_size=2)):
        requested, capacity, free, allocated, idle = (draw(sizes) for _ in range(5))
        state = wordings.State(draw(st.integers(0, 9)), requested, capacity, free, allocated, idle, this_process=draw(st.sampled_from((None, GIB))),
                               others=draw(st.sampled_from(((), ((7, GIB),)))))
        texts.append(draw(st.sampled_from(("", "[rank1]: ", "torch.OutOfMemoryError: "))) + wording(state))
    text = "\n".join([*draw(st.lists(st.sampled_from(AROUND), max_size=4)), *texts, *draw(st.lists(st.sampled_from(AROUND), max_size=3))])
    text = text.replace(" ", draw(st.sampled_from((" ", " ", " ", "\n", "  ")))) if values.seldom(draw, 6) else text
    files = {"x.log": draw(values.lengthened(draw(values.damaged(text.encode()))))}
    words = draw(st.sampled_from((("oom", "x.log"), ("oom", "x.log", "--json"), ("oom", "x.log", "--details"), ("predict", "--from", "x.log"))))
    return draw(st.sampled_from((Input("log", ("x.log",), files), Input("log", ("x.log",), files), Input("command", words, files))))


# models ----------------------------------------------------------------------------------------------------------

@lru_cache
def model_configurations() -> tuple[Any, ...]:
    """The configurations of the known models."""
    return tuple(json.loads(path.read_text()) for path in sorted((ROOT / "predictor/model/configs").glob("*.json")))


LOOKED_AT = ("model_type", "architectures", "image_size", "text_config", "vision_config", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")


@st.composite
def model_files(draw: st.DrawFn) -> Input:
    """A model's ``config.json``, changed anywhere, or in what is looked at before the model is built."""
    document = draw(st.sampled_from(model_configurations()))
    if values.seldom(draw, 3):
        document = copy.deepcopy(document)
        section = draw(st.sampled_from([document, *(value for value in document.values() if isinstance(value, dict))]))
        section[draw(st.sampled_from(LOOKED_AT))] = draw(values.odd())
    else:
        document = draw(values.changed(document))
    files = {"config.json": draw(written(document, "json"))}
    if values.seldom(draw, 4):
        settings = {"image_processor_type": "X", "size": {"height": 336, "width": 336}, "max_pixels": 1000000, "crop_size": 3}
        files["preprocessor_config.json"] = draw(written(draw(values.changed(settings)), "json"))
    return Input("model", (draw(st.sampled_from(("config.json", "."))),), files)
