"""Text reports of a hand-made prediction."""

import io
from dataclasses import replace

import pytest

from predictor.answer.predict import predict
from predictor.answer.prediction import Bound, Candidate, Caution, Remedy
from predictor.events.events import Factor, Moment
from predictor.report import explain, remedies, summary, table
from predictor.report.console import console
from predictor.report.formula import formula_text
from predictor.report.layers import LayerRow, collapse
from predictor.report.units import gib, share, size_text
from predictor.report.verdict import bounds, verdict
from predictor.workload.workload import Workload
from tests.predictor import samples
from tests.predictor.samples import GIB


def shown(report, prediction, width=100, **options) -> str:
    stream = io.StringIO()
    report(console(stream, width), prediction, **options)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


@pytest.mark.parametrize("size, text", [
    (0, "0 B"), (512, "512 B"), (1536, "1.50 KiB"), (8 << 20, "8.00 MiB"), (80 << 30, "80.00 GiB"), (-3 << 30, "-3.00 GiB"),
])
def test_a_size_has_the_largest_unit_that_it_fills(size, text):
    assert size_text(size) == text


def test_a_little_is_not_shown_as_nothing():
    assert (gib(1), gib(0), gib(GIB // 100 + GIB)) == ("<0.01", "0.00", "1.01")
    assert share(1, 0) == "0.0"


@pytest.mark.parametrize("gpu, line", [
    (None, "Peak 43.50 GiB allocated, 45.00 GiB reserved. No GPU named: add --gpu NAME or --capacity-bytes SIZE for a verdict."),
    ("h100-80gb", "Fits h100-80gb: peak 43.50 GiB allocated, 45.00 GiB reserved of 79.11 GiB; 34.11 GiB stay free."),
    ("rtx-a6000", "Fits rtx-a6000: peak 43.50 GiB allocated, 45.00 GiB reserved of 47.54 GiB (an assumed capacity); "
                  "2.54 GiB stay free."),
    ("rtx-4090", "Does not fit rtx-4090 (23.64 GiB): out of memory in forward of step 1 on rank 7, where aten::mm in "
                 "lm_head wants 1.00 GiB. It would peak at 43.50 GiB allocated, 45.00 GiB reserved."),
])
def test_the_verdict_gives_the_numbers_that_decide(gpu, line):
    assert verdict(samples.prediction(samples.workload(gpu=gpu))) == line


def test_an_uncertain_verdict_names_what_it_takes_to_run_out_of_memory():
    prediction = samples.prediction(samples.workload(gpu="h100-80gb"), verdict="uncertain",
                                    provenance={"runtime_bytes": GIB}, reserved=Bound(45 * GIB, 40 * GIB, 79 * GIB))
    assert verdict(prediction).endswith("if CUDA context, NCCL and libraries take 1.00 GiB and PyTorch reserves 79.00 GiB, "
                                        "the upper end of its interval.")


def test_a_reserved_peak_above_the_capacity_is_said_to_fit_at_the_lower_end_of_its_interval():
    prediction = samples.prediction(samples.workload(gpu="h100-80gb"), verdict="uncertain",
                                    provenance={"runtime_bytes": GIB}, reserved=Bound(85 * GIB, 78 * GIB, 92 * GIB))
    assert "85.00 GiB reserved of 79.11 GiB" in verdict(prediction)
    assert verdict(prediction).endswith(
        "and PyTorch reserves 92.00 GiB, the upper end of its interval. At the lower end, 78.00 GiB, it fits.")


def test_an_interval_is_shown_where_there_is_one():
    prediction = samples.prediction(requested=Bound(43 * GIB, 42 * GIB, 44 * GIB))
    assert "requested   43.00 GiB (42.00 GiB to 44.00 GiB)" in shown(table.report, prediction)


def test_bounds_that_read_as_the_value_are_not_shown():
    prediction = samples.prediction(requested=Bound(43 * GIB, 43 * GIB - 1, 43 * GIB))
    assert "requested   43.00 GiB   " in shown(table.report, prediction)


def test_the_table_of_predict():
    text = shown(table.report, samples.prediction(samples.workload(gpu="h100-80gb")))
    assert text == """\
Fits h100-80gb: peak 43.50 GiB allocated, 45.00 GiB reserved of 79.11 GiB; 34.11 GiB stay free.
llava-1.5-7b · finetune · batch 16 x 1,024 tokens · bf16 · adamw_torch_fused · checkpointing ·
  ZeRO-2 on 8 GPUs

requested   43.00 GiB       what tensors asked for (requested_bytes.all.peak)
allocated   43.50 GiB       in whole blocks (torch.cuda.max_memory_allocated)
reserved    45.00 GiB       held by PyTorch (torch.cuda.max_memory_reserved); 1.00 GiB of it idle at
                            the allocated peak
device      not predicted   what nvidia-smi shows

The peak is in backward of step 2 on rank 7: aten::mm in language_model.layers.31.mlp.down_proj.

                                    language_   vision_
at the peak (GiB)     all       %       model     tower
───────────────────────────────────────────────────────
parameters          13.00    29.9       12.00      1.00
optimizer_states     9.00    20.7        9.00
activations         21.00    48.3       21.00
allocator            0.50     1.1        0.50
total               43.50   100.0       42.50      1.00

moment           highest (GiB)   step   operator   module
─────────────────────────────────────────────────────────────────────────────────────────
init                     13.00      0   flatten
forward                  40.00      2   aten::mm   lm_head
backward                 43.00      2   aten::mm   language_model.layers.31.mlp.down_proj
optimizer_step           26.00      2   adamw

Answered by: shipped formula.
Calibration: none for this job: how far off requested, allocated and reserved bytes may be was not
  measured, which makes them no surer.
Defaults: recipe finetune, padding none, gradient_accumulation_steps 1, dtype bf16, mixed_precision
  none, attn_implementation sdpa, sdpa_backend auto, gradient_checkpointing true,
  gradient_checkpointing_kwargs use_reentrant=false, use_liger_kernel false, optim
  adamw_torch_fused, weight_decay 0.0, param_groups huggingface, max_grad_norm 1.0, keep_outputs
  none, zero_grad after_step, engine deepspeed, tensor_parallel_size 1, rank worst, versions
  torch=2.11.0 transformers=5.17.0 deepspeed=0.19.8
Not modelled: memory that PyTorch's allocator keeps in reserve; NCCL and the CUDA context"""


def test_names_with_brackets_are_shown_as_they_are():
    peak = replace(samples.prediction().peak, module="[bold]x[/bold] :smile:")
    assert "[bold]x[/bold] :smile:" in shown(table.report, samples.prediction(peak=peak))


def test_modules_that_there_is_no_room_for_become_one_column():
    modules = {f"m{i}": {Factor.PARAMETERS: (10 - i) * GIB} for i in range(9)}
    merged = table.merge_small(modules, 6)
    assert list(merged) == ["m0", "m1", "m2", "m3", "m4", "others"]
    assert sum(merged["others"].values()) == (5 + 4 + 3 + 2) * GIB


def test_a_formula_shows_what_each_term_comes_to_largest_first():
    candidate = Candidate(Moment.BACKWARD, "", "", 2, 3 * GIB + (1 << 20) + 64,
                          {"1": GIB, "batch·sequence": 131_072, "images^2": 4_096, "cublas()": 2, "sequence": 0, "batch*batch": 0})
    workload = {"per_device_train_batch_size": 16, "sequence_length": 1024, "images_per_sample": 1}
    assert formula_text(candidate, workload) == (
        "131,072 B·batch·sequence [2.00 GiB] + 1.00 GiB + 4,096 B·images^2 [1.00 MiB] + 2 x cublas [64 B]")


@pytest.mark.parametrize("workload", [
    {"per_device_eval_batch_size": 8, "conversation": [{"tokens": 1024, "images": 2}, {"tokens": 7, "images": 0}]},
    {"per_device_eval_batch_size": 8, "sequence_length": 1024, "images_per_sample": 2},
])
def test_a_formula_of_inference_is_of_its_first_call(workload):
    candidate = Candidate(Moment.PREFILL, "", "", 1, GIB + (8 << 20) + 64, {"batch·sequence": 131_072, "images": 1 << 19, "1": 64})
    assert formula_text(candidate, workload) == (
        "131,072 B·batch·sequence [1.00 GiB] + 524,288 B·images [8.00 MiB] + 64 B")


def test_explain_shows_the_highest_moments_in_order():
    text = shown(explain.report, samples.prediction(), moments=2)
    assert text.index("  1. 43.00 GiB  backward, step 2: aten::mm in language_model") < text.index(
        "     = 22.00 GiB + 1,310,720 B·batch·sequence [20.00 GiB] + cublas [1.00 GiB]") < text.index(
        "  2. 40.00 GiB  forward, step 2: aten::mm in lm_head")
    assert "  2. 40.00" not in shown(explain.report, samples.prediction(), moments=1)


def large():
    """A prediction with many high moments, and many layers of long names."""
    candidates = samples.prediction().candidates
    layers = {f"model.language_model.decoder.stack.layers.{i}.feed_forward.projection_{j}": {
        factor: (j + 1) * GIB for factor in Factor} for i in range(4) for j in range(40)}
    return samples.prediction(candidates=candidates * 10, layers=layers)


def test_the_short_explanation_fits_on_one_screen():
    lines = shown(explain.short, large()).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert "  3. " in "\n".join(lines) and lines[-1].endswith("--json has all as data.")


def test_the_short_explanation_has_the_moments_and_the_layers_that_are_asked_for():
    text = shown(explain.short, large(), moments=7, layers=20)
    assert "  7. " in text and "  8. " not in text and "20 more (--layers all)" in text
    assert "more (--layers" not in shown(explain.short, large(), layers=explain.ALL)


def test_layers_that_differ_in_one_number_are_one_row():
    layers = {"a.0.x": {Factor.PARAMETERS: 1}, "a.1.x": {Factor.PARAMETERS: 2, Factor.INPUTS: 4}, "a.2.x": {},
              "b.3": {Factor.PARAMETERS: 5}, "b.5": {Factor.PARAMETERS: 1}, "c": {Factor.PARAMETERS: 3}, "d.7.1": {}}
    assert collapse(layers) == [
        LayerRow("a.{0..2}.x", 3, {Factor.PARAMETERS: 3, Factor.INPUTS: 4}),
        LayerRow("b.{3,5}", 2, {Factor.PARAMETERS: 6}),
        LayerRow("c", 1, {Factor.PARAMETERS: 3}),
        LayerRow("d.7.1", 1, {}),
    ]


def test_explain_collapses_layers_and_says_how_many_it_left_out():
    text = shown(explain.report, samples.prediction(), layers=1)
    assert "language_model.layers.{0..31}.mlp   32   24.00   55.2   activations 16.00, parameters 8.00" in text
    assert "1 more (--layers all)                1    1.00    2.3" in text
    assert "more (--layers" not in shown(explain.report, samples.prediction(), layers=explain.ALL)


@pytest.mark.parametrize("width", [70, 80, 100, 160])
def test_no_width_cuts_a_layer_or_its_factors(width):
    layers = {f"model.vision_tower.encoder.layers.{i}.self_attn.out_proj": {
        Factor.PARAMETERS: GIB, Factor.OPTIMIZER_STATES: GIB, Factor.TEMPORARIES: GIB} for i in range(24)}
    lines = shown(explain.report, samples.prediction(layers=layers), width).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("layers at the peak"))
    text = "".join(" ".join(lines[start: lines.index("", start)]).split())
    assert max(map(len, lines)) <= width
    for word in ("parameters", "optimizer_states", "temporaries"):
        assert word in text


def test_frozen_modules_that_backward_runs_through_are_named_with_what_they_keep():
    text = " ".join(shown(explain.report, samples.prediction(passed_bytes={"head": 0, "language_model": 3 * GIB})).split())
    assert "and until then their activations stay: language_model 3.00 GiB." in text
    assert "Backward also runs" not in shown(table.report, samples.prediction())


def test_the_short_answer_leaves_out_what_details_have():
    text = shown(summary.report, samples.prediction(samples.workload(gpu="h100-80gb")))
    assert text == """\
Fits h100-80gb: peak 43.50 GiB allocated, 45.00 GiB reserved of 79.11 GiB; 34.11 GiB stay free.
llava-1.5-7b · finetune · batch 16 x 1,024 tokens · bf16 · adamw_torch_fused · checkpointing ·
  ZeRO-2 on 8 GPUs

requested   43.00 GiB       what tensors asked for
allocated   43.50 GiB       in whole blocks (max_memory_allocated)
reserved    45.00 GiB       held by PyTorch (max_memory_reserved), 1.00 GiB idle
device      not predicted   what nvidia-smi shows

The peak is in backward of step 2 on rank 7: aten::mm in language_model.layers.31.mlp.down_proj.

                                    language_   vision_
at the peak (GiB)     all       %       model     tower
───────────────────────────────────────────────────────
parameters          13.00    29.9       12.00      1.00
optimizer_states     9.00    20.7        9.00
activations         21.00    48.3       21.00
allocator            0.50     1.1        0.50
total               43.50   100.0       42.50      1.00

--details shows 2 further cautions, 20 defaults and all moments; --json has all as data."""


FIT = Remedy(("optimizer → host",), {"offload": "optimizer"}, ("copies over PCIe",), (), True, GIB, 2 * GIB, 3 * GIB)
DIES = replace(FIT, fits=False, peak_allocated_bytes=None, peak_reserved_bytes=None)
UNKNOWN = replace(DIES, fits=None, peak_requested_bytes=None, why_not="it has no formula yet", needs_trace=True)


def test_a_remedy_that_fits_is_named_with_its_bytes_and_its_price():
    assert remedies.remedy_text(FIT) == "Fits with optimizer → host: 3.00 GiB reserved (price: copies over PCIe)."


def test_a_remedy_that_changes_training_says_so():
    assert remedies.remedy_text(replace(FIT, costs=("nothing",), differs=("adapters train",))) == (
        "Fits with optimizer → host: 3.00 GiB reserved (changes training: adapters train).")


def test_in_inference_a_remedy_changes_inference():
    changing = replace(FIT, costs=("more batches",), differs=("fewer sequences at once",))
    assert remedies.short((changing,), "inference") == [
        "Fits with optimizer → host: 3.00 GiB reserved (price: more batches; changes inference: fewer sequences at once)."]


def test_where_tensors_have_room_a_remedy_fails_by_fragmentation_and_else_by_tensors():
    assert remedies.remedy_text(replace(DIES, room_bytes=GIB)) == (
        "Does not surely fit: optimizer → host: tensors need 1.00 GiB of the 2.00 GiB that PyTorch surely gets, but with "
        "idle memory (fragmentation) it reserves more.")
    assert remedies.remedy_text(replace(DIES, room_bytes=-GIB // 2)) == (
        "Does not surely fit: optimizer → host: tensors alone need 1.00 GiB, more than the 512.00 MiB that PyTorch surely "
        "gets.")


def test_the_short_answer_names_three_remedies_that_fit():
    assert remedies.short((DIES, *[FIT] * 5, UNKNOWN)) == [
        *[remedies.remedy_text(FIT)] * 3, "Not checked (add --remedies): optimizer → host."]


def test_the_upper_end_of_a_reserved_peak_is_given_where_it_reads_otherwise():
    assert ": 3.00 GiB reserved (" in remedies.remedy_text(replace(FIT, peak_reserved_bytes_high=3 * GIB + 1))
    assert ": 3.00 GiB (up to 4.00 GiB) reserved (" in remedies.remedy_text(replace(FIT, peak_reserved_bytes_high=4 * GIB))


def test_where_nothing_fits_the_closest_change_and_the_unchecked_ones_are_named():
    worse = replace(DIES, changes=("micro batch 2 → 1",), peak_requested_bytes=2 * GIB)
    assert remedies.short((worse, DIES, UNKNOWN)) == [
        "Nothing that was tried surely fits. Closest: optimizer → host, with which tensors alone need 1.00 GiB.",
        "Checked, and not enough alone: micro batch 2 → 1; optimizer → host.",
        "Not checked, as each needs a trace (add --remedies): optimizer → host."]


def test_an_answer_of_a_command_without_the_option_names_the_command_that_checks():
    assert remedies.short((UNKNOWN,), to_check=remedies.BY_PREDICT)[-1].startswith(
        "Not checked, as each needs a trace (peakcast predict … --remedies checks it): ")


def test_a_caution_gives_the_bytes_that_are_free_and_those_that_it_may_take():
    assert remedies.caution(Caution("NCCL was not measured", 2 * GIB, GIB)) == (
        "Caution: NCCL was not measured. With 1.00 GiB more than predicted it would no longer surely fit; this may take "
        "2.00 GiB more.")


@pytest.mark.parametrize("ranks, expected", [(1, "context as measured"), (8, "context as measured, NCCL assumed")])
def test_the_device_peak_says_which_part_outside_pytorch_was_measured(ranks, expected):
    found = predict(Workload(model="llava-1.5-7b", sequence_length=1024, zero_stage=2, data_parallel_size=ranks, gpu="h200"))
    assert {peak.name: peak.brief for peak in bounds(found)}["device"] == f"what nvidia-smi shows, {expected}"
