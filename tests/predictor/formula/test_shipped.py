"""The shipped formulas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events import workspaces
from predictor.events.regimes import Amount
from predictor.events.sizes import Shape
from predictor.formula import formula, shipped_sums, store, tracing
from predictor.model import parser
from predictor.model.models import find
from tests.predictor.small import traced_at

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from build_formulas import named_keys, sizes_of, usual, wanted  # noqa: E402

LIMIT_BYTES = 9_500_000
SHAPES = {("many", "many"): Shape(5, 1999, 10), ("1", "1"): Shape(1, 2047, 1), ("1", "many"): Shape(1, 3001, 4)}
"""Shapes that no fit has seen."""


def test_every_formula_that_is_wanted_is_shipped_once_in_little_room():
    files = {path.name: path for path in store.shipped_directory().glob("*.npz")}
    missing = [one.names for one in wanted() if len(files.keys() & one.names) != 1]
    assert not missing and files.keys() <= {name for one in wanted() for name in one.names}
    assert sum(path.stat().st_size for path in files.values()) < LIMIT_BYTES


def test_every_shipped_formula_is_read():
    read = [formula.load(path) for path in store.shipped_directory().glob("*.npz")]
    assert len(read) == len(wanted())


SAMPLE = named_keys()[::7]
"""Every seventh: all models, recipes, checkpointing, kernels and regimes occur."""


@pytest.mark.parametrize("config, key", SAMPLE, ids=[f"{c.name}-{k.recipe}-{k.checkpointing}-{k.sdpa_backend}-{k.regime.names().samples}" for c, k in SAMPLE])
def test_a_shipped_formula_is_what_the_tracer_finds_today(config, key):
    micro = formula.load(store.shipped_directory() / key.filename()).micro
    model = parser.build(find(config.name), attn_implementation="sdpa", recipe=key.recipe)
    if key.checkpointing == "on":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    shape, gpu = SHAPES[key.regime.names()[:2]], gpus.find("h100-80gb")
    recording = traced_at(model, shape, padding="none", sdpa_backend=key.sdpa_backend)
    true = [b.size if isinstance(b.size, int) else int(workspaces.FUNCTIONS[b.size[0]](gpu, *b.size[1]))
            for b in recording.buffers]
    sizes = micro.events.sizes.at(shape, gpu)[micro.events.buffers.size]
    assert sizes.tolist() == true
    # Gemma 3 makes rotary embeddings of equal size in the order of a set, which differs between processes
    # (transformers 5.17, models/gemma3/modeling_gemma3.py, Gemma3TextModel.forward)
    assert (micro.events.kind * sizes[micro.events.buffer]).tolist() == [
        size if event > 0 else -size for event, size in ((event, true[abs(event) - 1]) for event in recording.events)]


def test_the_file_of_sizes_is_that_of_the_formulas():
    assert (store.shipped_directory() / store.SIZES).read_text() == sizes_of(wanted())


def test_the_sums_are_those_of_the_formulas():
    assert (store.shipped_directory() / shipped_sums.NAME).read_text() == shipped_sums.text(store.shipped_directory())


def test_a_damaged_shipped_formula_is_one_line(tmp_path, monkeypatch):
    name = next(store.shipped_directory().glob("*.npz")).name
    for file in (name, shipped_sums.NAME):
        (tmp_path / file).write_bytes((store.shipped_directory() / file).read_bytes())
    other = sorted(store.shipped_directory().glob("*.npz"))[-1]
    monkeypatch.setattr(store, "shipped_directory", lambda: tmp_path)
    assert store._load(tmp_path / name, 1).provenance["shipped"]
    (tmp_path / name).write_bytes(other.read_bytes())  # a whole formula, but not that one
    with pytest.raises(InputError, match=f"{name}: is damaged, as its SHA-256 is not that in SHA256SUMS"):
        store._load(tmp_path / name, 2)


def test_a_shipped_formula_without_a_sum_is_one_line(tmp_path, monkeypatch):
    path = next(store.shipped_directory().glob("*.npz"))
    (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(store, "shipped_directory", lambda: tmp_path)
    for sums in (None, "", "0" * 64 + "  another.npz\n"):
        if sums is not None:
            (tmp_path / shipped_sums.NAME).write_text(sums)
        with pytest.raises(InputError, match=f"{path.name}: is damaged, as its SHA-256 is not that in SHA256SUMS"):
            store._load(tmp_path / path.name, 1)


USUAL = {one.config.name: one for one in reversed(list(usual()))
         if one.keys[0].sdpa_backend == "cudnn" and one.keys[0].regime.samples is Amount.MANY}
"""The first usual job of each model with several samples, whose formula was made with a model that others used."""


@pytest.mark.parametrize("one", USUAL.values(), ids=USUAL)
def test_a_shipped_formula_of_a_usual_job_is_what_a_new_model_does(one):
    path = next(store.shipped_directory() / name for name in one.names if (store.shipped_directory() / name).is_file())
    shipped, gpu = formula.load(path), gpus.find("h100-80gb")
    images = one.config.kind.has_media
    batch = 3 if shipped.regime.is_wide else 2
    shape = Shape(batch, shipped.facts.room(1) + 1256 - shipped.facts.room(1) % 8, batch * images)
    recording = tracing._prepared(one.config, one.keys[0]).record(shape)
    true = [b.size if isinstance(b.size, int) else int(workspaces.FUNCTIONS[b.size[0]](gpu, *b.size[1]))
            for b in recording.buffers]
    micro = shipped.at(shape).micro
    sizes = micro.events.sizes.at(shape, gpu)[micro.events.buffers.size]
    assert sizes.tolist() == true
    # Gemma 3 makes rotary embeddings of equal size in the order of a set, which differs between processes
    # (transformers 5.17, models/gemma3/modeling_gemma3.py, Gemma3TextModel.forward)
    assert (micro.events.kind * sizes[micro.events.buffer]).tolist() == [
        size if event > 0 else -size for event, size in ((event, true[abs(event) - 1]) for event in recording.events)]
