"""Strategies for documents of keys and values: workloads, DeepSpeed configs, configurations of training frameworks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

import yaml
from hypothesis import strategies as st

from predictor import readers
from predictor.readers import launchers
from predictor.readers.reading import Format
from predictor.workload import deepspeed_keys
from predictor.workload.keys import ALSO_CALLED, KEYS
from tests.attack import values
from tests.attack.inputs import Input

MOST_CHARACTERS = 20_000
"""Of a word of a command line."""
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
MODELS = ("llava-1.5-7b", "llava-1.5-13b", "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-4B-Instruct",
          "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B", "google/gemma-3-4b-it", "OpenGVLab/InternVL3-8B-hf", "gpt2")
"""Models of which formulas are shipped, and one without."""
RAW_LINES = ("&a b: 1", "<<: *a", "<<: {a: 1}", "? x", "? [a]\n: 1", "- x", "a: !!python/name:os.system", "a: !!int x", "a: 2001-01-01", "a: 1:30:00",
             "a: 0b1", "a: 0o7", "a: .nan", "a: |\n  x", "a: >-\n  x\n", "a: 'x", "---", "...", "%YAML 1.1", "\ta: 1", "a: b: c", "a:", ": a", "a: [1, 2",
             "a: {b: 1", "a: *nothing", "&x x: *x", "1: 2", "null: 1", "true: 1", "# c", "a: 9999999999999999999999999", "a: 1e400", "a: 1_0", "\ufeffa: 1")
"""Lines of YAML that its grammar allows, or nearly."""
MANY = ", ".join(f"&a{number} [{', '.join(['*a' + str(number - 1)] * 9 if number else ['x'] * 9)}]" for number in range(9))
"""A few hundred characters of YAML that stand for half a billion values."""

ZERO_2 = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8}}
BESIDE = {"ds.json": json.dumps(ZERO_2).encode(), "x.json": b'{"a": 1}', "x.yaml": b"num_processes: 8\n",
          "y.json": b'{"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_processes": 4, "deepspeed_config": {"zero_stage": 3}}',
          "here.txt": b"worker-0 slots=8\n"}
"""Files beside every configuration, which its values may name."""


SECTIONS: dict[str, dict[str, Any]] = {
    "accelerator_config": {"split_batches": False, "gradient_accumulation_kwargs": {"num_steps": 0, "sync_each_batch": False}}, "processor_kwargs": {"max_pixels": 262144},
    "model_kwargs": {"max_pixels": 262144, "image_max_token_num": 1024}, "gradient_checkpointing_kwargs": {"use_reentrant": False}, "model_init_kwargs": {"dtype": "bfloat16"},
    "bnb_config_kwargs": {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False}, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    "lr_scheduler_kwargs": {"min_lr": 1e-6}}
"""Keys of frameworks whose values are sections, each with a good one."""


@st.composite
def keyed(draw: st.DrawFn, kinds: Mapping[str, Any], always: Mapping[str, st.SearchStrategy[Any]], strange: Iterable[str] = ()) -> dict[str, Any]:
    """A mapping of some known keys to values, with those of ``always``, and in one of ten cases a key from ``strange``."""
    names = draw(st.lists(st.sampled_from(_names(kinds)), max_size=draw(st.sampled_from((1, 3, 6)))))
    document = {name: item for name, made in always.items() if not values.seldom(draw, 40) and (item := draw(made)) is not None}
    for name in names:
        section = SECTIONS.get(name)
        document[name] = draw(values.seldom_spoiled(section)) if section and draw(st.booleans()) else draw(values.value(kinds[name]))
    if values.seldom(draw, 10):
        document[draw(st.sampled_from((*strange, *values.ODD_TEXTS)))] = draw(values.odd())
    return document


def _names(kinds: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, kind in kinds.items() for _ in range(values.weight(kind)))


@st.composite
def written(draw: st.DrawFn, document: Any, how: str = "") -> bytes:
    """A document as JSON or YAML text, now and then with a line of its own, or damaged."""
    how = how or draw(st.sampled_from(("json", "yaml", "yaml")))
    if how == "json":
        text = values.as_json(document, indent=draw(st.sampled_from((None, 1))))
        text = (draw(st.sampled_from(("// c\n{}", "{} /* c", "{}{}", "[{}]"))) if values.seldom(draw, 10) else "{}").replace("{}", text)
    else:
        if values.seldom(draw, 50) and isinstance(document, dict) and document:
            document = document | draw(st.sampled_from(({draw(st.sampled_from(sorted(document, key=str))): "MANY"}, {"deepspeed": {"scheduler": "MANY"}})))
        text = values.with_raw(_yaml(document)).replace("MANY", f"[{MANY}]")
        if values.seldom(draw, 12):
            lines = text.splitlines()
            lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(RAW_LINES)))
            text = "\n".join(lines) + "\n"
    return draw(values.lengthened(draw(values.damaged(text.encode("utf-8", "surrogatepass")))))


def _yaml(document: Any) -> str:
    try:
        return yaml.dump(document, Dumper=DUMPER, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, UnicodeError, ValueError):  # surrogates, numbers that are too long
        return json.dumps(document, default=str)


# workloads -------------------------------------------------------------------------------------------------------

WORKLOAD = {name: field.metadata["kind"] for name, field in KEYS.items() if name not in ("deepspeed", "profile", "model")}


@lru_cache
def workloads() -> st.SearchStrategy[dict[str, Any]]:
    """Keys of workloads, of models whose formulas are shipped."""
    always = {"model": st.sampled_from(MODELS), "sequence_length": st.sampled_from((1024, 2048, 4096, 1500)), "gpu": st.sampled_from(
        ("h100-80gb", "a100-40gb", "rtx-4090")), "images_per_sample": st.sampled_from((None, None, 1, 2)),
              "lora": values.mostly(st.none(), values.good(WORKLOAD["lora"]), 4)}
    made = st.one_of(keyed({name: WORKLOAD[name] for name in USUAL}, always), keyed(WORKLOAD, always, (*ALSO_CALLED, "deepspeed", "profile")),
                     st.builds(lambda keys, zero: keys | {"deepspeed": zero}, keyed(WORKLOAD, always), deepspeed()))
    return made.map(lambda keys: {"recipe": "lora"} | keys if "lora" in keys else keys)


USUAL = ("recipe", "per_device_train_batch_size", "gradient_accumulation_steps", "optim", "engine", "zero_stage", "data_parallel_size", "offload",
         "lora", "rank", "gradient_checkpointing", "max_grad_norm", "padding", "capacity_bytes", "allocator_conf")
"""Keys of which many combinations are predicted."""


@st.composite
def workload_files(draw: st.DrawFn) -> Input:
    """Files for ``--workload``: read, and in one of eight cases predicted."""
    name = draw(st.sampled_from(("w.yaml", "w.json", "w.yml", "w")))
    files = {name: draw(written(draw(workloads()), "json" if name == "w.json" else ""))}
    if not values.seldom(draw, 8):
        return Input("workload", (name,), BESIDE | files)
    words = draw(st.lists(st.sampled_from(("--json", "--details", "--minimum-capacity", "--zero-stage=3", "--gpu=h200")), max_size=2))
    return Input("command", ("predict", "--workload", name, *words), BESIDE | files)


@st.composite
def option_lines(draw: st.DrawFn) -> Input:
    """Command lines of peakcast itself, with options for keys of a workload."""
    keys = draw(workloads())
    words = [draw(st.sampled_from(("predict", "predict", "predict", "predict", "explain", "models", "profiles", "schema")))]
    words += [str(keys.pop("model"))] if "model" in keys else []
    for key, item in keys.items():
        item = "ds.json" if key == "deepspeed" and not values.seldom(draw, 8) else item
        option = "--" + str(key).replace("_", "-")
        items = [f"{name}={inner}" for name, inner in item.items()] if isinstance(item, dict) else item if isinstance(item, list) else [item]
        for inner in items[:3]:
            words += [option] if inner is True else ["--no-" + option[2:]] if inner is False else [option, values.with_raw(str(inner))]
    return Input("command", tuple(word[:MOST_CHARACTERS] for word in words), BESIDE)


# DeepSpeed -------------------------------------------------------------------------------------------------------

@lru_cache
def deepspeed() -> st.SearchStrategy[dict[str, Any]]:
    """DeepSpeed configs."""
    return _deepspeed()


@st.composite
def _deepspeed(draw: st.DrawFn) -> dict[str, Any]:
    document: dict[str, Any] = {"bf16": {"enabled": True}, "zero_optimization": {"stage": draw(st.sampled_from((0, 1, 2, 3)))}}
    for name in draw(st.lists(st.sampled_from(tuple(deepspeed_keys.READ)), max_size=6)):
        section, _, key = name.rpartition(".")
        place = document.setdefault(section, {}) if section else document
        place[key] = "auto" if values.seldom(draw, 6) else draw(values.value(deepspeed_keys.READ[name]))
    for section, names in deepspeed_keys._WITHOUT_EFFECT.items():
        if names.split() and values.seldom(draw, 8):
            (document.setdefault(section, {}) if section else document)[draw(st.sampled_from(names.split()))] = draw(values.odd())
    if values.seldom(draw, 8):
        document[draw(st.sampled_from(("optimizer", "scheduler", "zero_optimization", "bf16", "fp16", "amp", *values.ODD_TEXTS)))] = draw(st.one_of(
            values.odd(), st.just({"type": "AdamW", "params": {"lr": 1e-4}}), st.just({"enabled": True})))
    return document


@st.composite
def deepspeed_files(draw: st.DrawFn) -> Input:
    """DeepSpeed configs as files: of a workload, and read by the reader."""
    document = draw(deepspeed())
    document = draw(values.changed(document)) if values.seldom(draw, 4) else document
    files = {"d.json": draw(written(document, "json"))}
    if draw(st.booleans()):
        return Input("read", ("d.json",), BESIDE | files)
    keys = {"model": "llava-1.5-7b", "sequence_length": 1024, "deepspeed": "d.json", "data_parallel_size": draw(st.sampled_from((1, 2, 8, 64)))}
    return Input("workload", ("w.json",), {"w.json": json.dumps(keys).encode(), **files})


# training frameworks ---------------------------------------------------------------------------------------------

@lru_cache
def form(name: str) -> Format:
    """A format by its name."""
    return import_module(readers.FORMATS[name]).FORMAT


NEEDED = {
    "model_name_or_path": st.sampled_from(MODELS), "model": st.sampled_from(MODELS), "base_model": st.sampled_from(MODELS),
    "per_device_train_batch_size": st.sampled_from((1, 2, 4, 16)), "output_dir": st.just("out"), "micro_batch_size": st.sampled_from((1, 2)),
    "model_max_length": st.sampled_from((2048, 512)), "max_length": st.sampled_from((2048, 512)), "cutoff_len": st.sampled_from((2048, 512)),
    "sequence_len": st.sampled_from((2048, 512)), "bf16": st.just(True), "deepspeed": values.mostly(st.sampled_from(("ds.json", None)), st.sampled_from(
        ("~nobody-there/x", "none.json", "x\0", "d" * 300, "/dev/zero", ".", "{", "[]", "", "x.yaml")), 8),
    "stage": st.just("sft"), "finetuning_type": st.sampled_from(("lora", "full")), "train_type": st.sampled_from(("lora", "full")),
    "adapter": st.sampled_from(("lora", "qlora")), "data_path": st.just("d.json"), "version": st.just("v1"), "dataset_name": st.just("x"),
    "dataset": st.just("x"), "datasets": st.just([{"path": "x", "type": "chat_template"}]), "vision_tower": st.just("openai/clip-vit-large-patch14-336"),
    "template": st.just("qwen2_vl"), "image_max_pixels": st.sampled_from((262144, 1003520)), "max_pixels": st.sampled_from((262144, 1003520)),
    "dataset_use": st.just("x"), "use_liger": st.booleans(), "lora_r": st.sampled_from((8, 16)), "lora_target_modules": st.just(["q_proj"]), "image_folder": st.just("x"), "lora_enable": st.booleans()}
"""Keys that a training of some framework has -> usual values."""
OF_AXOLOTL = ("lora_r", "lora_target_modules", "adapter")
"""Those that stand for something else where they are no keys of axolotl's."""


@lru_cache
def configurations(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Configurations in a framework's format."""
    own = form(name)
    if name == "deepspeed":
        return deepspeed()
    kinds: dict[str, Any] = {key: field.value_type for key, field in own.fields.items()}
    kinds |= {old: kinds.get(new) for old, new in own.renamed.items()}
    kinds |= dict.fromkeys(sorted(own.without_effect), None)
    always = {key: made for key, made in NEEDED.items() if key in own.fields and (name == "axolotl" or key not in OF_AXOLOTL)}
    return keyed(kinds, always, tuple(KEYS)).map(_of_4_bits)


def _of_4_bits(document: dict[str, Any]) -> dict[str, Any]:
    """With what ``adapter: qlora`` needs beside it."""
    return {"load_in_4bit": True} | document if document.get("adapter") == "qlora" else document


@st.composite
def framework_files(draw: st.DrawFn, name: str) -> Input:
    """Configuration files of a framework: read, and in one of twelve cases predicted or compared by a command."""
    document = draw(configurations(name))
    document = draw(values.spoiled(document)) if values.seldom(draw, 8) else document
    file = draw(st.sampled_from(("c.yaml", "c.yml", "c.json")))
    files = BESIDE | {file: draw(written(document, "json" if file == "c.json" else ""))}
    given = draw(st.sampled_from((name, None, name)))
    if not values.seldom(draw, 12):
        return Input("read", (file, given) if given else (file,), files)
    words = ("predict", "--from", file, "--from-format", name, "--gpu", "h100-80gb", *draw(st.sampled_from(((), ("--json",), ("--data-parallel-size", "8"), ("--details",), ("--image-size", "768x1024"), ("--image-size", "64,1024x32")))))
    return Input("command", draw(st.sampled_from((words, ("fits", file), ("explain", "--from", file)))), files)


# accelerate and hostfiles ----------------------------------------------------------------------------------------

ACCELERATE = ("compute_environment", "distributed_type", "num_processes", "num_machines", "mixed_precision", "deepspeed_config", "fsdp_config", "gpu_ids",
              "machine_rank", "main_training_function", "downcast_bf16", "dynamo_config", "fp8_config", "use_cpu", "same_network", "rdzv_backend",
              "megatron_lm_config", "parallelism_config", "debug", "enable_cpu_affinity", "tpu_env")
DISTRIBUTED = ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "no", 1)
DEEPSPEED_SECTION: dict[str, Any] = {"zero_stage": 2, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "offload_optimizer_device": "none",
                                     "offload_param_device": "none", "zero3_init_flag": False, "deepspeed_multinode_launcher": "standard"}
FSDP_SECTION: dict[str, Any] = {"fsdp_version": 1, "fsdp_sharding_strategy": "1", "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap":
                                "LlamaDecoderLayer", "fsdp_offload_params": False, "fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing": False, "fsdp_state_dict_type":
                                "SHARDED_STATE_DICT", "fsdp_use_orig_params": True, "fsdp_backward_prefetch": 1, "fsdp_cpu_ram_efficient_loading": False,
                                "fsdp_sync_module_states": False}
COMMON = {"compute_environment": "LOCAL_MACHINE", "num_processes": 2, "num_machines": 1, "machine_rank": 0, "mixed_precision": "bf16", "main_training_function": "main",
          "downcast_bf16": "no", "same_network": True, "rdzv_backend": "static", "use_cpu": False, "debug": False}
FILES: tuple[tuple[dict[str, Any], dict[str, tuple[Any, ...]]], ...] = (
    (COMMON | {"distributed_type": "DEEPSPEED", "deepspeed_config": DEEPSPEED_SECTION},
     {"zero_stage": (0, 1, 2, 3, "2"), "gradient_accumulation_steps": (1, "1", "auto"), "gradient_clipping": (1.0, "1.0", "auto", 1), "offload_optimizer_device": ("cpu", "none")}),
    (COMMON | {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json", "zero3_init_flag": True}}, {}),
    (COMMON | {"distributed_type": "FSDP", "fsdp_config": FSDP_SECTION},
     {"fsdp_version": (1, 2), "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", 1, 2, "2"), "fsdp_backward_prefetch": ("BACKWARD_PRE", "NO_PREFETCH", 1, "2"),
      "fsdp_activation_checkpointing": (True, False), "fsdp_reshard_after_forward": (True, False, "FULL_SHARD", "SHARD_GRAD_OP")}),
    (COMMON | {"distributed_type": "MULTI_GPU"}, {"num_processes": (2, 8, "8"), "mixed_precision": ("no", "fp16")}),
    (COMMON | {"distributed_type": "NO", "num_processes": 1}, {}))
"""Configuration files of accelerate as they should be, each with other values that some of its keys may have."""
OPTION_VALUES = ("0", "1", "2", "3", "none", "cpu", "True", "False", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "LlamaDecoderLayer", "BACKWARD_PRE", "ds.json", "auto", "bf16")


@st.composite
def accelerate_files(draw: st.DrawFn) -> Input:
    """Configuration files of accelerate, with a command that names them: mostly one thing in them is wrong."""
    base, others = draw(st.sampled_from((*FILES, *FILES[:3])))
    sections = {key: dict(item) for key, item in base.items() if isinstance(item, dict)}
    document: dict[str, Any] = {**base, **sections}
    for key in draw(st.lists(st.sampled_from(sorted(others)), max_size=3)) if others else ():
        place = next(section for section in (document, *sections.values()) if key in section)
        place[key] = draw(st.sampled_from(others[key]))
    for section in sections.values():
        for key in draw(st.lists(st.sampled_from(sorted(section)), max_size=2)):
            section.pop(key, None)
    if values.seldom(draw, 8):
        document |= draw(st.dictionaries(st.sampled_from(ACCELERATE), st.one_of(values.odd(), st.sampled_from(DISTRIBUTED)), max_size=2))
    place = draw(st.sampled_from((None, *sections, *sections)))
    if place is None:
        document = draw(values.seldom_spoiled(document))
    else:
        document[place] = draw(values.seldom_spoiled(document[place]))
    options: list[str] = []
    if values.seldom(draw, 5):
        names = st.sampled_from(("mixed_precision", "num_processes", "use_fsdp", "use_deepspeed", *DEEPSPEED_SECTION, *FSDP_SECTION))
        for name in draw(st.lists(names, min_size=1, max_size=2)):
            text = draw(st.one_of(st.sampled_from(OPTION_VALUES), st.sampled_from(values.ODD_DIGITS)))
            options += [f"--{name}"] if name.startswith("use") else [f"--{name}", text]
    precision = draw(st.sampled_from((("--bf16", "True"), ("--bf16", "True"), ())))
    words = ("accelerate", "launch", "--config_file", "a.yaml", *options, "train.py", "--model_name_or_path", draw(st.sampled_from(MODELS)),
             "--output_dir", "o", "--max_length", "512", *precision)
    return Input("words", words, BESIDE | {"a.yaml": draw(written(document))})


@st.composite
def hostfiles(draw: st.DrawFn) -> Input:
    """Hostfiles of the deepspeed launcher, with filters."""
    line = values.mostly(st.sampled_from(("worker-0 slots=8", "worker-1 slots=4", "# c", "", "a slots=99999")), st.one_of(
        st.sampled_from(("b slots=x", "c", "worker-0  slots=0 x", "worker-0 slots=8 # c")), st.sampled_from(values.ODD_TEXTS)), 8)
    filters = st.one_of(st.sampled_from(("worker-0", "worker-0:0,1", "worker-0@worker-1:2", "x:9", ":", "@", "worker-0:0-3", "worker-1:7")),
                        st.sampled_from(values.ODD_DIGITS).map("worker-0:{}".format))
    options = [word for name in draw(st.lists(st.sampled_from(("include", "exclude", "num_nodes", "num_gpus")), max_size=draw(st.sampled_from((0, 1, 2)))))
               for word in (f"--{name}", draw(filters if name[2] == "c" else values.mostly(st.sampled_from(("1", "2", "0", "x")), st.sampled_from(values.ODD_DIGITS), 4)))]
    content = draw(values.damaged("\n".join(draw(st.lists(line, min_size=1, max_size=5, unique=True))).encode("utf-8", "surrogatepass")))
    return Input("words", ("deepspeed", "--hostfile", "h", *options, "train.py", "--model_name_or_path", "gpt2", "--output_dir", "o",
                           "--max_length", "64"), {"h": content})


LAUNCHER_OPTIONS = {name: tuple(" ".join(launchers.table()[name][group]).replace("|", " ").split() for group in ("with_value", "without"))
                    for name in launchers.PACKAGES}
"""Launcher -> its options with a value, and those without."""
