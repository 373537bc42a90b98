"""Run the long tests, which the test command leaves out. Most stand beside a shorter one of the same claim.

    pip install -e '.[test]'
    python scripts/check.py long_tests                   # about twenty minutes on two cores
    python -m pytest -m long -k course                   # some of them

The outcomes go to profiles/evidence/long_tests.json, with the date and the versions.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from calibrate.checks.directories import EVIDENCE
from calibrate.checks.outcome import Outcome
from predictor.common.errors import InputError

ROOT = Path(__file__).parents[1]
PAGE = EVIDENCE / "long_tests.json"
VERSIONS = ("torch", "transformers", "deepspeed")
LONG: dict[str, tuple[str, ...]] = {
    "test_docs_in_turn.py": ("test_a_command_that_needs_files_runs_with_them",),
    "test_docs.py": ("test_a_command_that_takes_long_prints_what_the_page_shows",),
    "calibrate/commands/test_predict_run.py": (
        "test_a_launcher_of_eight_starts_one_process_that_acts_as_one_of_them[accelerate",
        "test_a_launcher_of_eight_starts_one_process_that_acts_as_one_of_them[deepspeed"),
    "calibrate/dryrun/test_dryrun.py": (
        "test_hugging_faces_trainer_holds_a_few_bytes_more_than_the_reference_loop",),
    "calibrate/dryrun/test_dryrun_compiled.py": (
        "test_what_is_not_compiled_for_the_gpu_runs",
        "test_hugging_faces_trainer_that_compiles_is_refused_and_runs_with_the_variable",
        "test_what_is_compiled_for_the_gpu_ends_the_dry_run_with_one_sentence[model",
        "test_what_is_compiled_for_the_gpu_ends_the_dry_run_with_one_sentence[torch.compile(layer)",
        "test_what_is_compiled_for_the_gpu_ends_the_dry_run_with_one_sentence[torch.compile(scaled"),
    "calibrate/dryrun/test_dryrun_factors.py": (
        "test_a_rank_has_the_same_peaks_without_its_factors", "test_the_factors_of_a_rank_are_those_of_its_prediction[ddp",
        "test_the_factors_of_a_rank_are_those_of_its_prediction[fsdp2",
        "test_the_factors_and_the_modules_add_up_to_the_allocated_peak[fsdp2",
        "test_the_factors_of_a_plain_loop_are_those_of_its_prediction_to_the_byte[{'checkpointing'",
        "test_the_script_allocates_the_same_bytes_as_on_the_bare_emulated_gpu_and_nothing_is_kept_alive[reentrant",
        "test_the_script_allocates_the_same_bytes_as_on_the_bare_emulated_gpu_and_nothing_is_kept_alive[trainer"),
    "calibrate/dryrun/test_dryrun_recording.py": (
        "test_the_answer_is_the_same_whatever_the_script_records[-torch.cuda.memory._record_memory_history(context",
        "test_hugging_faces_trainer_leaves_its_script_the_history_that_it_has_without_a_dry_run",
        "test_the_answer_is_the_same_whatever_the_script_records[torch"),
    "calibrate/emulator/test_emulator_device.py": tuple(
        f"test_a_block_used_on_two_streams_is_free_when_its_event_completes[{events}" for events in ("launches", "immediate")),
    "calibrate/learn/test_learn_truth.py": (
        "test_zero_3_which_has_no_analytical_engine_is_predicted_where_it_never_ran",
        "test_a_model_of_one_kind_of_sample_is_predicted_where_it_never_ran[resnet",
        "test_a_model_of_one_kind_of_sample_is_predicted_where_it_never_ran[whisper",
        "test_a_script_with_placeholders_is_predicted_where_it_never_ran"),
    "calibrate/measure/test_warm_workers.py": (
        "test_a_forked_job_measures_what_a_started_one_does", "test_origins_beyond_the_last_used_end"),
    "calibrate/probes/test_probes.py": tuple(
        f"test_every_call_allocates_and_frees_what_the_tracer_says_in_that_order[{gpu}" for gpu in ("b200", "l40s")),
    "calibrate/training/test_training_truth.py": (
        "test_an_evaluation_that_finds_no_memory_is_recorded_as_the_end",
        "test_memory_statistics_are_the_same_without_the_callback",
        "test_the_recorded_peaks_are_those_that_a_watcher_of_the_whole_process_finds[zero2",
        "test_a_loop_that_keeps_outputs_and_gradients_is_predicted_so",
        "test_a_trainer_that_keeps_the_output_is_predicted_so",
        "test_an_evaluation_after_the_record_was_written_is_recorded_with_it"),
    "calibrate/truth/test_allocator_settings_truth.py": (
        "test_zero_2_requests_other_bytes_where_settings_decide_whether_parameters_flatten_on_the_gpu[555745280-False",),
    "calibrate/truth/test_allocator_truth.py": (
        "test_every_counter_and_address_is_pytorchs_after_every_event[immediate",),
    "calibrate/truth/test_attention_truth.py": (
        "test_a_course_of_packed_rows_for_flash_attn_is_simulated", *(
            f"test_transformers_around_flash_attn_is_predicted[{case}"
            for case in ("autocast]", "autocast-lora", "packed-4bit", "padded", "zero2-offload", "zero3-offload"))),
    "calibrate/truth/test_autotp_truth.py": ("test_the_trainer_needs_what_is_predicted_of_its_config",),
    "calibrate/truth/test_course_truth.py": (
        "test_every_step_is_simulated[a loader one batch ahead", "test_every_step_is_simulated[ddp, script",
        "test_every_step_is_simulated[fsdp2, expandable", "test_every_step_is_simulated[incomplete batches",
        "test_every_step_is_simulated[llava zero2", "test_every_step_is_simulated[packed before",
        "test_every_step_is_simulated[packed images", "test_every_step_is_simulated[quantized to 8 bits",
        "test_every_step_is_simulated[zero3"),
    "calibrate/truth/test_evaluation_truth.py": (
        "test_a_measured_job_is_predicted[ddp-lora-padded", "test_a_measured_job_is_predicted[fp16-autocast-ddp",
        "test_the_trainers_own_evaluation_is_predicted"),
    "calibrate/truth/test_inference_truth.py": (
        "test_a_conversation_survives_the_turns_that_are_said_to_fit_and_dies_in_the_next",
        "test_a_measured_job_is_predicted[4-bits]", "test_a_measured_job_is_predicted[4-bits-few-rows",
        "test_a_measured_job_is_predicted[8-bits-conversation", "test_a_measured_job_is_predicted[8-bits-static"),
    "calibrate/truth/test_liger_truth.py": (
        "test_a_measured_job_is_predicted[packed-zero2",
        *(f"test_a_measured_language_model_is_predicted[{model}" for model in ("mistral", "qwen2", "qwen3")),
        "test_the_trainer_s_own_switch_is_predicted"),
    "calibrate/truth/test_lora_truth.py": (
        "test_a_measured_job_is_predicted[dora-zero1", "test_a_measured_job_is_predicted[dora-everywhere",
        "test_a_measured_job_is_predicted[modules-to-save-zero2",
        "test_the_trainer_with_a_model_that_peft_wrapped_on_the_cpu_is_predicted[torch",),
    "calibrate/truth/test_maximum_load_truth.py": (
        "test_the_maximum_load_survives_and_the_next_larger_dies[ddp",
        "test_the_maximum_load_survives_and_the_next_larger_dies[fsdp2",
        "test_the_maximum_load_survives_and_the_next_larger_dies[torch"),
    "calibrate/truth/test_models_truth.py": tuple(
        f"test_a_model_is_predicted[{model}" for model in (
            "gemma3", "gpt2", "idefics3", "llava_next", "pixtral", "qwen2_5_vl-keys9", "t5")),
    "calibrate/truth/test_oom_truth.py": tuple(
        f"test_the_message_tells_the_numbers_of_the_allocator[{case}" for case in ("fragmented", "full")),
    "calibrate/truth/test_operators_truth.py": tuple(
        "test_an_operator_allocates_and_frees_what_the_tracer_says_in_that_order[embedding backward, 3072 tokens-" + gpu
        for gpu in ("a100-80gb", "rtx-4090")),
    "calibrate/truth/test_optimizers_truth.py": ("test_a_small_job_needs_what_is_predicted[adafactor]",),
    "calibrate/truth/test_plan_truth.py": (
        "test_of_adapters_on_one_gpu_the_plain_loop_survives_as_planned_and_the_next_batch_dies",),
    "calibrate/truth/test_precision_truth.py": (
        *(f"test_a_measured_job_is_predicted[{case}" for case in ("fp16-mixed-lora", "fp16-zero3", "fp32-zero1")),
        "test_the_trainer_in_mixed_precision_is_predicted[fp16"),
    "calibrate/truth/test_quantization_truth.py": tuple(
        f"test_a_measured_job_is_predicted[{case}" for case in ("8 bits", "as TRL", "ddp", "maxima", "packed")),
    "calibrate/truth/test_readers_truth.py": (
        "test_a_frozen_tower_in_llama_factory_keeps_its_activations_as_predicted",
        "test_axolotls_qlora_needs_what_its_file_is_read_as_and_adapters_of_fp32",
        "test_the_trainer_needs_what_its_command_line_is_read_as[autocast"),
    "calibrate/truth/test_replay_truth.py": tuple(
        f"test_random_work_recorded_from_the_start_or_in_mid_run_is_replayed[{settings}" for settings in (
            "-launches:5-more1", "-launches:5-more3", "-synchronization", "max_split_size")),
    "calibrate/truth/test_reserved_truth.py": tuple(
        f"test_no_rank_of_real_jobs_has_more_than_the_predicted_worst[{{'{job}" for job in (
            "engine': 'ddp'", "zero_stage': 1", "zero_stage': 2")),
    "calibrate/truth/test_saving_truth.py": (
        "test_saving_takes_nothing_of_the_gpu[torch", "test_saving_takes_nothing_of_the_gpu[zero1",
        "test_saving_takes_nothing_of_the_gpu[zero2"),
    "calibrate/truth/test_tensor_parallel_truth.py": ("test_every_moment_needs_what_is_predicted[grouped heads",),
    "calibrate/truth/test_trl_truth.py": (
        "test_a_command_of_trl_needs_what_it_is_read_as[ddp", "test_a_command_of_trl_needs_what_it_is_read_as[evaluation",
        "test_a_command_of_trl_needs_what_it_is_read_as[lora", "test_a_command_of_trl_needs_what_it_is_read_as[packing",
        "test_a_command_of_trl_needs_what_it_is_read_as[zero2",
        "test_a_measured_job_with_pictures_is_predicted[autocast", "test_a_measured_job_with_pictures_is_predicted[zero2"),
    "calibrate/truth/test_what_if_truth.py": (
        "test_other_settings_need_what_pytorch_needs_with_them[None-roundup",
        "test_other_settings_need_what_pytorch_needs_with_them[expandable"),
    "calibrate/truth/test_zero3_truth.py": ("test_a_job_with_its_history_recorded_needs_the_same",),
    "predictor/answer/test_maximum_load.py": (
        "test_a_conversation_goes_on_for_as_many_turns_as_fit", "test_a_conversation_goes_on_until_positions_end",
        "test_the_most_conversations_that_fit_are_found_without_a_trace_at_their_batch",
        "test_a_short_prompt_that_fits_is_the_longest_where_positions_end",
        "test_a_static_cache_grows_with_a_longer_prompt_as_long_as_positions_last",
        "test_prompts_that_are_not_predicted_end_the_search_only_if_the_next_does_not_fit[194"),
    "predictor/answer/test_training_load.py": (
        "test_a_plan_finds_the_same_largest_batch[keys2", "test_a_plan_finds_the_same_largest_batch[keys3",
        "test_other_keys_stay_as_given[fsdp2", "test_other_keys_stay_as_given[images"),
    "predictor/explore/test_explore_scripts.py": tuple(
        f"test_an_answer_about_adapters_is_the_predictors[{engine}" for engine in ("torch", "zero1")),
    "predictor/formula/test_families.py": (
        *(f"test_a_family_s_member_equals_the_trace_at_every_event[{shape}-{recipe}"
          for shape in ("images", "pairs", "samples") for recipe in ("True0", "True1", "full", "trainer")),
        "test_few_layers_give_a_family_s_members_where_some_layers_differ[windows"),
    "predictor/formula/test_formula.py": (
        *(f"test_formula_equals_the_trace_at_every_event_of_unseen_shapes[{case}" for case in (
            "finetune-off-cudnn", "finetune-off-flash", "finetune-on-cudnn-none-1/many", "finetune-on-efficient",
            "finetune-on-flash-none", "finetune-on-flash-right-many/many/padded", "full-off-cudnn-none-many", "full-on-cudnn",
            "pretrain-off-cudnn")),
        "test_a_sequence_that_reaches_a_sliding_window_is_another_regime[1000"),
    "predictor/formula/test_shipped.py": tuple(
        f"test_a_shipped_formula_of_a_usual_job_is_what_a_new_model_does[{model}" for model in (
            "gemma-3-12b", "internvl3-8b", "qwen2.5-vl-3b", "qwen3-vl-8b")),
    "predictor/plan/test_background.py": ("test_a_process_that_ends_is_one_line_and_the_plan_is_the_same",),
    "predictor/plan/test_plan_precision.py": (
        "test_adapters_train_over_weights_of_the_dtype_that_predict_has_by_default",
        "test_weights_of_bf16_are_no_other_training_where_the_configuration_has_them"),
    "predictor/readers/test_own_words.py": (
        *(f"test_a_changed_file_is_read_as_the_changed_workload[{framework}-{form}"
          for framework in ("llamafactory", "swift") for form in ("command", "json", "script")),
        "test_a_changed_file_is_read_as_the_changed_workload[llava-yaml",
        "test_a_changed_file_is_read_as_the_changed_workload[transformers-command"),
}
"""File below ``tests/`` -> how the names of its long tests begin."""


def is_long(file: str, name: str) -> bool:
    """Whether a test is left out of the test command."""
    return name.startswith(LONG.get(file, ()))


def options(parser: ArgumentParser) -> None:
    """The check has no options of its own."""


def jobs(args: Namespace) -> list[str]:
    return sorted(LONG)


def measure(files: Sequence[str], args: Namespace) -> dict[str, str]:
    """Runs the tests; their outcomes by name.

    Raises:
        InputError: pytest could not run them.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "long", "-n", str(min(2, os.cpu_count() or 1)),
                   "--dist", "loadfile", f"--junitxml={report}", *(str(ROOT / "tests" / file) for file in files)]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if not report.exists():
            raise InputError(f"pytest ended with exit code {done.returncode}: its words are above")
        cases = ElementTree.parse(report).iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}": next(iter(case)).tag if len(case) else "passed"
                for case in cases}


def table(outcomes: dict[str, str], args: Namespace) -> Outcome:
    """The saved summary."""
    counts = Counter(outcomes.values())
    failed = sorted(name for name, outcome in outcomes.items() if outcome != "passed")
    summary = {
        "date": datetime.now(timezone.utc).date().isoformat(), "passed": counts["passed"], "not passed": failed,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}}
    return Outcome({"tests that did not pass": len(failed), "entries without a test": len(unknown(outcomes))},
                   {PAGE: json.dumps(summary, indent=1) + "\n"},
                   (f"{counts['passed']} of {len(outcomes)} passed", *failed, *unknown(outcomes)))


def unknown(outcomes: dict[str, str]) -> list[str]:
    """Entries of :data:`LONG` that name no test that ran."""
    ran = [tuple(name.split("::")) for name in outcomes]
    return [f"{file}::{start}" for file, starts in LONG.items() for start in starts
            if not any(name.startswith(start) for module, name in ran
                       if module == "tests." + file.removesuffix(".py").replace("/", "."))]
