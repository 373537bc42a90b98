"""Formulas against direct traces, byte for byte, and the files that hold them."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common import arrays, gpus
from predictor.common.errors import InputError
from predictor.events import regimes, workspaces
from predictor.events.regimes import Amount, Regime
from predictor.events.sizes import Shape
from predictor.formula import fit, formula
from predictor.formula.store import Key
from predictor.formula.tracing import trace_formula
from predictor.model import parser
from predictor.model.model_config import ModelConfig
from tests.predictor.small import small_config, traced_at

H100 = gpus.find("h100-80gb")
TOKENS = 4
"""Tokens of an image in the small model."""


def key(**changes) -> Key:
    settings = dict(fingerprint="", recipe="finetune", trainable=(), frozen=(), padding="none",
                    checkpointing="on", attn_implementation="sdpa", sdpa_backend="cudnn", regime=Regime.parse(("many", "many", "whole")),
                    torch="2.11.0", transformers="5.17.0")
    return Key(**(settings | changes))


@cache
def made(k: Key) -> formula.Formula:
    return trace_formula(ModelConfig("small", small_config()), k)


def traced(k: Key, shape: Shape):
    model = parser.build(ModelConfig("small", small_config()), attn_implementation=k.attn_implementation, recipe=k.recipe)
    if k.checkpointing != "off":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": k.checkpointing == "reentrant"})
    return traced_at(model, shape, padding=k.padding, sdpa_backend=k.sdpa_backend)


def draw(rng: random.Random, regime: Regime, pads: bool) -> Shape:
    """A random shape of a regime that no fit has seen: any batch, any sequence, odd ones included."""
    while True:
        batch = 1 if regime.samples is Amount.ONE else rng.randint(2, 40)
        per_sample = 1 if regime.images is Amount.ONE else rng.randint(2 if batch == 1 else 1, 5)
        shape = Shape(batch, TOKENS * per_sample + rng.randint(1, 700), batch * per_sample)
        if regimes.regime_of(shape, pads_masks=pads) == regime:
            return shape


CASES = [
    key(),
    key(checkpointing="off"),
    key(checkpointing="reentrant"),
    key(recipe="pretrain"),
    key(recipe="pretrain", checkpointing="off"),
    key(recipe="full"),
    key(recipe="full", checkpointing="off"),
    key(regime=Regime.parse(("1", "1", "whole"))),
    key(regime=Regime.parse(("1", "1", "whole")), recipe="full", checkpointing="off"),
    key(regime=Regime.parse(("1", "many", "whole"))),
    key(sdpa_backend="flash"),
    key(sdpa_backend="flash", checkpointing="off"),
    key(sdpa_backend="efficient"),
    key(sdpa_backend="math"),
    key(attn_implementation="eager", sdpa_backend=""),
    key(padding="right"),
    key(padding="right", sdpa_backend="flash", regime=Regime.parse(("many", "many", "padded"))),
    key(padding="right", sdpa_backend="flash", regime=Regime.parse(("many", "many", "whole"))),
]


@pytest.mark.parametrize("k", CASES, ids=lambda k: f"{k.recipe}-{k.checkpointing}-{k.sdpa_backend or 'eager'}-{k.padding}-{'/'.join(k.regime.names())}")
def test_formula_equals_the_trace_at_every_event_of_unseen_shapes(k):
    micro = made(k).micro
    rng = random.Random(str(k))
    for _ in range(3):
        shape = draw(rng, k.regime, k.padding == "right" and k.sdpa_backend in ("flash", "efficient"))
        recording = traced(k, shape)
        sizes = micro.events.sizes.at(shape, H100)[micro.events.buffers.size]
        true = [b.size if isinstance(b.size, int) else int(workspaces.FUNCTIONS[b.size[0]](H100, *b.size[1]))
                for b in recording.buffers]
        assert (micro.events.kind * (micro.events.buffer + 1)).tolist() == recording.events, shape
        assert sizes.tolist() == true, shape


@pytest.mark.parametrize("sequence, rows", [(900, "whole"), (1000, "whole>1000"), (2000, "whole>1000")])
def test_a_sequence_that_reaches_a_sliding_window_is_another_regime(sequence, rows):
    config = ModelConfig("small", small_config(model_type="mistral", sliding_window=1000))
    regime = regimes.regime_of(Shape(2, sequence, 2), windows=config.windows)
    assert regime.names() == ("many", "many", rows)
    micro = trace_formula(config, key(regime=regime)).micro
    model = parser.build(config, attn_implementation="sdpa", recipe="finetune")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    shape = Shape(2, sequence, 2)
    recording = traced_at(model, shape, padding="none", sdpa_backend="cudnn")
    true = [b.size if isinstance(b.size, int) else int(workspaces.FUNCTIONS[b.size[0]](H100, *b.size[1]))
            for b in recording.buffers]
    assert (micro.events.kind * (micro.events.buffer + 1)).tolist() == recording.events
    assert micro.events.sizes.at(shape, H100)[micro.events.buffers.size].tolist() == true


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_damage_to_a_formula_file_is_more_than_one_line(tmp_path_factory, data):
    whole = formula.to_bytes(made(key()))
    position = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:position] + bytes([whole[position] ^ data.draw(st.integers(1, 255))]) + whole[position + 1 :]
    path = tmp_path_factory.mktemp("damaged") / "f.npz"
    path.write_bytes(damaged)
    try:
        formula.load(path)
    except InputError as error:
        assert "\n" not in str(error)


def test_a_formula_file_gives_back_the_same_formula(tmp_path):
    before = made(key())
    (tmp_path / "f.npz").write_bytes(formula.to_bytes(before))
    after = formula.load(tmp_path / "f.npz")
    assert after.facts == before.facts and after.provenance["key"]["recipe"] == "finetune"
    assert after.micro.events.sizes.terms == before.micro.events.sizes.terms
    for name in ("kind", "buffer", "moment"):
        assert np.array_equal(getattr(after.micro.events, name), getattr(before.micro.events, name))


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"", lambda data: b"PK" + data[50:]])
def test_a_damaged_formula_file_is_one_clear_line(tmp_path, damage):
    path = tmp_path / "f.npz"
    path.write_bytes(damage(formula.to_bytes(made(key()))))
    with pytest.raises(InputError, match="not a formula file") as caught:
        formula.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["buffer_module", "buffer_size", "moment", "ready", "coefficients"])
def test_columns_of_other_than_whole_numbers_are_refused(tmp_path, name):
    (tmp_path / "f.npz").write_bytes(formula.to_bytes(made(key())))
    columns, _ = arrays.load(tmp_path / "f.npz")
    (tmp_path / "f.npz").write_bytes(arrays.to_bytes(columns | {name: columns[name].astype(np.float64)}))
    with pytest.raises(InputError, match="not a formula file"):
        formula.load(tmp_path / "f.npz")


@pytest.mark.parametrize("term", [[1, 0], [1, 0, {}], [1.5, 0, 0], [True, 0, 0], ["cublas_workspace", [[[[0, 0], 1]]]],
                                  ["cublas_workspace", [[[[0, 0, 0], "1"]]]], [5, 0, 0], [0, 10**18, 0], [0, 0, -1]])
def test_a_term_of_other_than_small_whole_numbers_is_refused(term):
    with pytest.raises(ValueError):
        formula.term_from_json(term)


def test_recordings_of_two_regimes_are_refused():
    k = key()
    shapes = [Shape(1, 40, 1), Shape(2, 40, 2)]
    with pytest.raises(fit.NotOneRegime):
        fit.fit([traced(k, shape) for shape in shapes], shapes, [])


def test_every_regime_s_shapes_lie_in_it_and_above_its_lower_bound():
    for batch in ("1", "many"):
        for images in ("1", "many"):
            for rows in ("padded", "whole"):
                regime = Regime.parse((batch, images, rows))
                if (batch, images) == ("many", "1"):
                    continue  # two samples have two images
                lower = regimes.smallest_shape(regime, TOKENS)
                for shape in regimes.traced_shapes(regime, lambda images: TOKENS * images):
                    assert regimes.regime_of(shape, pads_masks=rows == "padded") == regime
                    assert all(a >= b for a, b in zip(shape, lower))
