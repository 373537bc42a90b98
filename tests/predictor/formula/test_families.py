"""Regimes of several images that follow from each other, and layers that stand for others, against direct traces."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events import regimes, workspaces
from predictor.events.regimes import NotOneRegime, Regime
from predictor.events.sizes import Shape
from predictor.formula import few_layers, fit, formula, recordings, tracing
from predictor.formula.fold import Folding
from predictor.formula.repeats import Repeats, unroll
from predictor.formula.store import Key
from predictor.model.model_config import ModelConfig
from predictor.trace.recorder import Recording
from tests.predictor.small_models import ALL

H100 = gpus.find("h100-80gb")
QWEN = ModelConfig("small", ALL["qwen2_5_vl"])
FAMILY = Regime.parse(("many", "x1", "whole"))
ONE_SAMPLE = Regime.parse(("=1", "many", "whole"))


def key(regime: Regime, **changes) -> Key:
    return Key(**dict(fingerprint="", recipe="finetune", trainable=(), frozen=(), padding="none", checkpointing="on",
                      attn_implementation="sdpa", sdpa_backend="cudnn", regime=regime, torch="2.11.0",
                      transformers="5.17.0", image_sizes=((112, 84),)) | changes)


@cache
def family(k: Key) -> formula.Formula:
    return tracing.trace_formula(QWEN, k)


def direct(config: ModelConfig, k: Key, shape: Shape) -> Recording:
    return tracing._prepared(config, k).record(shape)


def sizes_of(recording: Recording) -> list[int]:
    return [b.size if isinstance(b.size, int) else int(workspaces.FUNCTIONS[b.size[0]](H100, *b.size[1]))
            for b in recording.buffers]


@pytest.mark.parametrize("changes", [{}, {"recipe": "full", "checkpointing": "off"}, {"recipe": "full"},
                                     {"sharded": True}, {"evaluation": "trainer"}],
                         ids=lambda changes: "-".join(map(str, changes.values())) or "finetune")
@pytest.mark.parametrize(("regime", "shapes"), [
    (FAMILY, (Shape(2, 99, 2), Shape(5, 80, 5), Shape(9, 300, 9))),
    (ONE_SAMPLE, (Shape(1, 120, 3), Shape(1, 160, 8))),
    (Regime.parse(("many", "x2", "whole")), (Shape(3, 120, 6),)),
], ids=["samples", "images", "pairs"])
def test_a_family_s_member_equals_the_trace_at_every_event(regime, shapes, changes):
    check_members(QWEN, key(regime, **changes), shapes)


@pytest.mark.parametrize(("regime", "shapes"), [(FAMILY, (Shape(2, 99, 2), Shape(7, 80, 7))),
                                                (ONE_SAMPLE, (Shape(1, 160, 6),))], ids=["samples", "images"])
def test_a_mask_of_all_patches_of_all_images_grows_with_their_square(regime, shapes):
    check_members(ModelConfig("small", ALL["pixtral"]), key(regime), shapes)


def check_members(config: ModelConfig, k: Key, shapes: tuple[Shape, ...]) -> None:
    """Compares members of a family with direct traces, column by column."""
    whole = family(k) if config is QWEN else tracing.trace_formula(config, k)
    parameters = [p.name for p in whole.facts.parameters]
    for shape in shapes:
        member, recording = whole.at(shape), direct(config, k, shape)
        events, true = member.micro.events, fit.fit([recording], [shape], parameters)
        assert (events.kind * (events.buffer + 1)).tolist() == recording.events, shape
        assert events.sizes.at(shape, H100)[events.buffers.size].tolist() == sizes_of(recording), shape
        for name in ("stream", "factor"):
            assert np.array_equal(getattr(events.buffers, name), getattr(true.events.buffers, name))
        assert [events.names[row] for row in events.buffers.module] == [b.module for b in recording.buffers]
        assert np.array_equal(events.moment, true.events.moment)
        for name in ("ready", "persistent", "marks", "owners", "outputs"):
            found, wanted = getattr(member.micro, name), getattr(true, name)
            assert (found is None) == (wanted is None) and (found is None or np.array_equal(found, wanted)), name


_TEXT = ALL["qwen2_5_vl"]["text_config"] | {"num_hidden_layers": 6}
_VISION = ALL["qwen2_5_vl"]["vision_config"] | {"depth": 6, "fullatt_block_indexes": [2, 5], "window_size": 56,
                                                "deepstack_visual_indexes": [1, 3], "num_position_embeddings": 64}
DEEP_TOWERS = [
    ModelConfig("windows", ALL["qwen2_5_vl"] | {"text_config": _TEXT, "vision_config": _VISION}),
    ModelConfig("deepstack", ALL["qwen2_5_vl"] | {
        "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "vision_config": _VISION,
        "text_config": _TEXT | {"model_type": "qwen3_vl_text", "head_dim": 16}})]


@pytest.mark.parametrize("config", DEEP_TOWERS, ids=lambda config: config.name)
def test_few_layers_give_a_family_s_members_where_some_layers_differ(config):
    """Some layers of the tower attend in windows, or hand features to layers of the language model; others do not."""
    check_members(config, key(FAMILY, recipe="full"), (Shape(2, 99, 2), Shape(5, 80, 5)))


def test_a_member_is_a_formula_of_its_number_of_images():
    member = family(key(FAMILY)).at(Shape(5, 80, 5))
    assert member.regime.names() == ("=5", "=5", "whole")
    assert member.facts.image_tokens == (12,) * 5 and member.repeats is None


def test_a_family_s_file_gives_back_the_same_members(tmp_path):
    path = tmp_path / "family.npz"
    path.write_bytes(formula.to_bytes(family(key(FAMILY))))
    shape = Shape(6, 99, 6)
    before, after = family(key(FAMILY)).at(shape).micro, formula.load(path).at(shape).micro
    assert np.array_equal(before.events.buffer, after.events.buffer)
    assert np.array_equal(before.events.buffers.size, after.events.buffers.size)
    assert np.array_equal(before.ready, after.ready)


@pytest.mark.parametrize("damage", [
    lambda r: replace(r, units=0),
    lambda r: replace(r, blocks=r.blocks[::-1]),
    lambda r: replace(r, blocks=r.blocks + [1 << 20, 0]),
    lambda r: replace(r, blocks=r.blocks * [1, -1]),
    lambda r: replace(r, blocks=r.blocks - [1, 0]),
    lambda r: replace(r, blocks=r.blocks.ravel()),
    lambda r: replace(r, frees=r.frees[1:]),
    lambda r: replace(r, frees=-r.frees),
    lambda r: replace(r, frees=r.frees + [0, 0, 0, 1, 0, 0]),
    lambda r: replace(r, frees=r.frees + [0, 0, 0, 0, 1 << 20, 0]),
], ids=range(10))
def test_loops_that_do_not_fit_the_events_are_one_clear_line(tmp_path, damage):
    path, whole = tmp_path / "family.npz", family(key(FAMILY))
    damaged = damage(whole.repeats)
    damaged = replace(damaged, blocks=damaged.blocks.astype(np.int32), frees=damaged.frees.astype(np.int32))
    path.write_bytes(formula.to_bytes(replace(whole, repeats=damaged)))
    with pytest.raises(InputError, match="not a formula file") as caught:
        formula.load(path)
    assert "\n" not in str(caught.value)


def test_more_images_than_events_can_be_held_for_are_refused():
    with pytest.raises(InputError, match="a step has more than 2,300,000 events: give fewer"):
        family(key(FAMILY)).at(Shape(1 << 20, 80, 1 << 20))


def listed(events: list[int], sizes: dict[int, int] | None = None) -> Recording:
    """A recording of these events; buffers are told apart by operators that their sizes name."""
    from predictor.events.events import Moment
    from predictor.trace.recorder import RecordedBuffer

    rows = sum(event > 0 for event in events)
    return Recording([RecordedBuffer((sizes or {}).get(row, 8), "", "aten::empty", Moment.FORWARD)
                      for row in range(1, rows + 1)], events, [Moment.FORWARD] * len(events))


def in_order(n: int) -> list[int]:
    return [*range(1, n + 1), n + 1, -(n + 1), *range(-1, -n - 1, -1)]


def reversed_(n: int) -> list[int]:
    return [*range(1, n + 1), n + 1, -(n + 1), *range(-n, 0)]


def test_copies_of_a_buffer_are_freed_in_the_order_in_which_two_recordings_free_them():
    described = {-1: "x"}
    for frees in (in_order, reversed_):
        two, three, seven = (listed(frees(n), {n + 1: 16}) for n in (2, 3, 7))
        for recording in (two, three, seven):
            recording.buffers[-1].operator = described[-1]
        assert Folding(two, three, 2).folded(seven, 7).events == two.events


def test_a_third_recording_that_does_not_follow_is_no_family():
    two, three, four = listed(in_order(2)), listed(in_order(3)), listed(reversed_(4))
    with pytest.raises(NotOneRegime, match="the events of 4 units do not follow from those of 2"):
        Folding(two, three, 2).folded(four, 4)


def test_passes_of_different_sizes_are_no_family():
    recordings_ = [listed(in_order(n), {n: 24}) for n in (2, 3)]
    with pytest.raises(NotOneRegime, match="different sizes"):
        Folding(*recordings_, 2)


def test_a_loop_that_frees_a_buffer_twice_is_refused():
    events = np.array([1, 2, -1, -2])
    with pytest.raises(ValueError, match="freed twice"):
        unroll(events, Repeats(2, np.array([[4, 1]], dtype=np.int32), np.empty((0, 6), dtype=np.int32)), 1)


DEEP = ModelConfig("deep", {**ALL["llama"], "num_hidden_layers": 8})


def of_text(**changes):
    return tracing._prepared(DEEP, key(Regime.parse(("many", "none", "whole")), image_sizes=(), **changes))


@pytest.mark.parametrize("changes", [{}, {"recipe": "full", "checkpointing": "off"}, {"sharded": True}], ids=str)
def test_one_layer_of_a_class_gives_the_sizes_of_all(changes):
    traced = of_text(**changes)
    shapes = [Shape(2, 40, 0), Shape(3, 80, 0), Shape(4, 136, 0)]
    known = {shape: traced.record(shape) for shape in shapes[:2]}
    few = few_layers.FewLayers(traced.model, traced.record, known)
    assert len(few._few.buffers) < len(known[shapes[0]].buffers) / 2
    assert few.at(shapes[2]) == traced.record(shapes[2])


def test_layers_run_again_after_a_trace_of_a_few():
    traced = of_text()
    shape = Shape(2, 40, 0)
    before = traced.record(shape)
    few_layers.FewLayers(traced.model, traced.record, {shape: before})
    assert traced.record(shape).events == before.events


SHAPES = [Shape(2, 40, 0), Shape(3, 80, 0), Shape(4, 136, 0)]


def with_layers(forward_of) -> tracing._Traced:
    """A model whose layers' forwards are those that ``forward_of`` makes from a layer's number and own forward."""
    traced = of_text()
    for number, layer in enumerate(traced.model.model.layers):
        layer.forward = forward_of(number, layer.forward)
    return traced


def holding(number: int, own, size):
    """A forward during which another tensor of so many bytes is alive; ``size`` takes the tokens of a sample."""
    import torch

    def forward(hidden, *args, **kwargs):
        held = torch.empty(size(number, hidden.shape[1]), dtype=torch.uint8, device="meta")
        result = own(hidden, *args, **kwargs)
        del held
        return result
    return forward


def check_every_shape_is_that_of_the_whole_model(traced: tracing._Traced) -> None:
    found = map(recordings.OfRegime(traced.key.regime, traced.model, traced.record, {}).at, SHAPES)
    assert list(map(sizes_of, found)) == [sizes_of(traced.record(shape)) for shape in SHAPES]


def test_a_layer_that_differs_at_the_second_shape_is_traced_at_every_shape():
    """Layer 5 holds a byte a token, the others 40 bytes."""
    traced = with_layers(lambda number, own: holding(number, own, lambda n, tokens: tokens if n == 5 else 40))
    with pytest.raises(NotOneRegime, match="allocate differently"):
        few_layers.FewLayers(traced.model, traced.record, {shape: traced.record(shape) for shape in SHAPES[:2]})
    check_every_shape_is_that_of_the_whole_model(traced)


def test_layers_that_need_what_an_earlier_one_computes_are_all_traced():
    """Layer 3 counts tokens, and layer 6 holds a byte for each of them."""
    counted: dict[str, int] = {}

    def forward_of(number, own):
        def counting(hidden, *args, **kwargs):
            counted.clear() if number == 0 else counted.update(tokens=hidden.shape[1])
            return own(hidden, *args, **kwargs)

        if number == 6:
            return holding(number, own, lambda n, tokens: counted["tokens"])
        return counting if number in (0, 3) else own

    traced = with_layers(forward_of)
    with pytest.raises(NotOneRegime, match="needs what skipped layers compute: 'tokens'"):
        few_layers.FewLayers(traced.model, traced.record, {shape: traced.record(shape) for shape in SHAPES[:2]})
    check_every_shape_is_that_of_the_whole_model(traced)


def test_a_shape_at_which_few_layers_have_other_events_is_traced_with_all_of_them():
    """The whole model's list of events decides what is one regime, not that of a model whose layers are skipped."""
    traced = of_text()
    few_at: list[Shape] = []

    def record(shape: Shape) -> Recording:
        recording = traced.record(shape)
        if len(recording.buffers) < len(whole.buffers):
            few_at.append(shape)
            if shape == SHAPES[2]:
                recording.events.append(-1)
        return recording

    whole = traced.record(SHAPES[0])
    found = list(map(recordings.OfRegime(traced.key.regime, traced.model, record, {}).at, SHAPES))
    assert SHAPES[2] in few_at
    assert list(map(sizes_of, found)) == [sizes_of(traced.record(shape)) for shape in SHAPES]


def test_layers_that_all_differ_are_not_skipped():
    traced = of_text()
    shape = Shape(2, 40, 0)
    whole = traced.record(shape)
    for number, buffer in enumerate(whole.buffers):
        buffer.size = number
    with pytest.raises(NotOneRegime, match="most layers are different"):
        few_layers.FewLayers(traced.model, traced.record, {shape: whole})


def test_a_shape_of_several_images_belongs_to_a_family():
    def families(shape: Shape) -> list[tuple]:
        return [regime.names() for regime in regimes.regimes_from_widest(regimes.regime_of(shape), shape)
                if regime.is_family]

    assert families(Shape(4, 80, 8)) == [("many", "x2", "whole")]
    assert families(Shape(1, 80, 3)) == [("=1", "many", "whole")]
    assert families(Shape(1, 80, 1)) == families(Shape(2, 80, 3)) == families(Shape(2, 80, 0)) == []


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("regime", [FAMILY, ONE_SAMPLE, Regime.parse(("many", "x3", "padded"))])
def test_a_family_s_shapes_show_two_members_and_prove_a_third(regime, squares):
    shapes = regimes.traced_shapes(regime, lambda images: 5 * images, squares=squares)
    assert [regime.units(shape) for shape in shapes[:3]] == [2, 3, 4]
    assert all(regimes.regime_of(shape, pads_masks=True).rows is regime.rows for shape in shapes)
    assert all(shape.sequence > 5 * (shape.images // shape.batch) for shape in shapes)
    terms = fit.monomials(shapes, squares=squares)
    for unseen in range(2, len(shapes)):  # each further shape is a check: the others determine the terms
        fit.solver(shapes[:unseen] + shapes[unseen + 1 :], terms)
