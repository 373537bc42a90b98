"""Compare the readers of LLaMA-Factory, ms-swift, axolotl and TRL configurations with the packages themselves.

The check compares each key and each default of a format with the package's own argument classes. It also compares the
examples of tests/predictor/configurations with the arguments that the package makes of them. The packages need other
versions of transformers than the tests, so use an environment of their own:

    pip install --no-deps llamafactory ms-swift axolotl     (and the packages that importing them needs)
    DISABLE_VERSION_CHECK=1 python scripts/check.py readers
    python scripts/check.py readers --only trl      (pip install trl; other formats keep their results)

The result goes to profiles/evidence/readers.json. The tests compare transformers and DeepSpeed.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from calibrate.checks.directories import EVIDENCE, ROOT
from calibrate.checks.outcome import Outcome
from predictor.common.errors import InputError

PACKAGES = {"llamafactory": "llamafactory", "swift": "ms-swift", "axolotl": "axolotl", "trl": "trl"}
"""Format -> its package."""
EXAMPLES = ROOT / "tests/predictor/configurations"
EXPLAINED = {("axolotl", "max_grad_norm"): "handed on only where it is given: transformers' default",
             ("swift", "sequence_parallel_size"): "1 is off"}
"""Format and key -> the reason why a default may differ."""
OFF: tuple[Any, ...] = (None, False, "", 0, 0.0, (), [], "no", "none")
"""Defaults that mean the same: the feature is off."""
TINY = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 112,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 320, "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16"}
ON_THE_CPU = {"use_cpu": True, "report_to": "none", "output_dir": "out"}


def options(parser: ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, default=EVIDENCE / "readers.json", metavar="FILE",
                        help="default: profiles/evidence/readers.json")
    parser.add_argument("--only", choices=tuple(PACKAGES), metavar="FORMAT", help="compare one format")


def jobs(args: Namespace) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """Format -> the function that compares it."""
    known = {"llamafactory": llamafactory, "swift": swift, "axolotl": axolotl, "trl": trl}
    return {name: check for name, check in known.items() if args.only in (None, name)}


def measure(jobs: Mapping[str, Callable[[], dict[str, Any]]], args: Namespace) -> dict[str, dict[str, Any]]:
    """Compares each reader with its package.

    Raises:
        InputError: a package is not installed.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "USE_HF": "1"}
    for name in jobs:
        try:
            importlib.metadata.version(PACKAGES[name])
        except importlib.metadata.PackageNotFoundError:
            raise InputError(f"{PACKAGES[name]} is not installed: pip install --no-deps llamafactory ms-swift axolotl "
                             "trl, and the packages that importing them needs, in an own environment") from None
    return {name: check() for name, check in jobs.items()}


def table(results: dict[str, dict[str, Any]], args: Namespace) -> Outcome:
    """The differences by format."""
    kept = json.loads(args.output.read_text()) if args.output.exists() else {"versions": {}, "formats": {}}
    own = {"measured_at": datetime.date.today().isoformat(), "command": "python scripts/check.py readers",
           "versions": {name: importlib.metadata.version(name) for name in (
               *(PACKAGES[name] for name in results), "transformers", "torch")}}
    if args.only:  # the others were compared beside other releases
        document = {**kept, "formats": kept["formats"] | results, "alone": {**kept.get("alone", {}), args.only: own}}
    else:
        document = {**own, "formats": results}
    lines = []
    for name, result in results.items():
        differing = {key: item for key, item in result.items() if item and isinstance(item, (list, dict))}
        lines.append(f"{name} {result['keys']} keys, {result['defaults']} defaults and {result['example']} values of "
                     f"the example: {differing or 'all the same'}")
    differences = sum(len(result[key]) for result in results.values()
                      for key in ("unknown", "differing", "example_differing"))
    return Outcome({"differences": differences}, {args.output: json.dumps(document, indent=1, default=str) + "\n"},
                   tuple(lines))


def compared(name: str, defaults: Mapping[str, Any], example: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Compares one format.

    Args:
        defaults: the package's own default of each key.
        example: key -> the package's value and the reader's value for the example configuration.
    """
    from predictor.readers import FORMATS

    form = import_module(FORMATS[name]).FORMAT
    ours = {key: field.default for key, field in form.fields.items() if key in defaults}
    differing = {key: {"package": defaults[key], "reader": value} for key, value in ours.items()
                 if plain(value) != plain(defaults[key]) and not (value in OFF and defaults[key] in OFF)
                 and (name, key) not in EXPLAINED}
    return {"keys": len(defaults), "unknown": sorted(
                defaults.keys() - form.fields.keys() - form.without_effect - form.renamed.keys()),
            "defaults": len(ours), "differing": differing, "example": len(example),
            "example_differing": {key: {"package": theirs, "reader": read} for key, (theirs, read) in example.items()
                                  if plain(theirs) != plain(read)}}


def plain(value: Any) -> Any:
    """A value in the form that JSON has: the value of an enumeration, the item of a list of one."""
    value = getattr(value, "value", value)
    value = list(value) if isinstance(value, tuple) else value
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def of_dataclasses(*classes: type) -> dict[str, Any]:
    """Field name -> default of dataclasses; None without a default."""
    return {entry.name: entry.default_factory() if entry.default_factory is not dataclasses.MISSING else
            None if entry.default is dataclasses.MISSING else entry.default
            for each in classes for entry in dataclasses.fields(each) if entry.init}


def llamafactory() -> dict[str, Any]:
    """Compares the reader with ``llamafactory.hparams``."""
    import peft  # noqa: F401  before transformers.training_args
    from llamafactory.hparams import parser as hparams

    from predictor.common.files import read_mapping
    from predictor.readers import read

    values, _ = read(path=str(EXAMPLES / "llamafactory.yaml"))
    document = read_mapping(EXAMPLES / "llamafactory.yaml", "the example") | ON_THE_CPU
    model, data, training, finetuning, _ = hparams._parse_train_args(
        {key: item for key, item in document.items() if key != "warmup_ratio"})
    example = {
        "sequence_length": (data.cutoff_len, values["sequence_length"]),
        "lora.r": (finetuning.lora_rank, values["lora"]["r"]),
        "lora.lora_alpha": (finetuning.lora_alpha, values["lora"]["lora_alpha"]),
        "lora.lora_dropout": (finetuning.lora_dropout, values["lora"]["lora_dropout"]),
        "image_size": (model.image_max_pixels, values["image_size"] ** 2),
        "gradient_checkpointing": (not model.disable_gradient_checkpointing, values["gradient_checkpointing"]),
        "use_reentrant": (model.use_reentrant_gc, values["gradient_checkpointing_kwargs"]["use_reentrant"]),
        **of_trainer(training, values)}
    return compared("llamafactory", of_dataclasses(*hparams._TRAIN_ARGS), example)


def of_trainer(training: Any, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Values of an example in Hugging Face's ``TrainingArguments``, and the reader's."""
    keys = ("per_device_train_batch_size", "gradient_accumulation_steps", "weight_decay", "optim")
    return {key: (getattr(training, key), values[key]) for key in keys}


def swift() -> dict[str, Any]:
    """Compares the reader with ``swift.arguments``. The example has a tiny model, as the package reads model files."""
    from swift.arguments import SftArguments

    from predictor.readers import command, read

    path = EXAMPLES / "swift.sh"
    script_values = command.from_script(path.read_text(), path.name, str(path)).values
    values, _ = read(path=str(path), options={"data_parallel_size": 1})
    chosen = {key: script_values[key] for key in ("per_device_train_batch_size", "lora_rank", "max_length")}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(TINY))
        arguments = SftArguments(
            model=folder, model_type="llama", template="llama", dataset=["x"], torch_dtype=script_values["torch_dtype"],
            tuner_type=script_values["train_type"], **{key: int(item) for key, item in chosen.items()}, use_cpu=True,
            report_to=[], output_dir=folder, add_version=False)
    example = {
        "sequence_length": (arguments.max_length, values["sequence_length"]),
        "lora.r": (arguments.lora_rank, values["lora"]["r"]),
        "lora.lora_alpha": (arguments.lora_alpha, values["lora"]["lora_alpha"]),
        "lora.lora_dropout": (arguments.lora_dropout, values["lora"]["lora_dropout"]),
        "bf16": (arguments.bf16, values["dtype"] == "bf16"), "dtype": (str(arguments.torch_dtype), "torch.bfloat16"),
        **of_trainer(arguments.training_args, values)}
    from swift import arguments as package

    from predictor.readers.swift import builtin

    presets = Path(package.__file__).parents[1] / "config"
    for name in ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"):
        theirs, ours = json.loads((presets / f"{name}.json").read_text()), builtin(name)
        quiet = ("zero_quantized_weights", "zero_quantized_gradients")  # both off
        zero = {key: item for key, item in theirs["zero_optimization"].items() if key not in quiet}
        example[f"deepspeed {name}"] = (zero, ours["zero_optimization"])
        example[f"deepspeed {name}, rest"] = ({key: theirs[key] for key in ours if ours[key] == "auto"},
                                              {key: item for key, item in ours.items() if item == "auto"})
    return compared("swift", of_dataclasses(SftArguments), example)


def axolotl() -> dict[str, Any]:
    """Compares the reader with ``axolotl.utils.schemas``, with the plugins for Liger and cut cross-entropy."""
    from axolotl.utils.schemas.config import AxolotlInputConfig

    from predictor.common.files import read_mapping
    from predictor.readers import read

    fields = dict(AxolotlInputConfig.model_fields)
    for plugin, name in (("liger", "LigerArgs"), ("cut_cross_entropy", "CutCrossEntropyArgs")):
        fields |= getattr(of_plugin(plugin), name).model_fields
    defaults = {key: entry.get_default(call_default_factory=True) if not entry.is_required() else None
                for key, entry in fields.items()} | {"cut_cross_entropy": None}  # on only with its plugin
    document = read_mapping(EXAMPLES / "axolotl.yml", "the example")
    parsed = AxolotlInputConfig(**{key: item for key, item in document.items() if item is not None})
    values, _ = read(path=str(EXAMPLES / "axolotl.yml"))
    names = {"per_device_train_batch_size": "micro_batch_size", "sequence_length": "sequence_len", "optim": "optimizer",
             "gradient_accumulation_steps": "gradient_accumulation_steps", "weight_decay": "weight_decay",
             "gradient_checkpointing": "gradient_checkpointing"}
    example = {ours: (getattr(parsed, theirs), values[ours]) for ours, theirs in names.items()}
    example |= {f"lora.{ours}": (getattr(parsed, theirs), values["lora"][ours]) for ours, theirs in (
        ("r", "lora_r"), ("lora_alpha", "lora_alpha"), ("lora_dropout", "lora_dropout"))}
    example["attention"] = (parsed.attn_implementation, "flash_attention_2")
    return compared("axolotl", defaults, example)


def trl() -> dict[str, Any]:
    """Compares the reader with the classes of ``trl sft``."""
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig

    from predictor.readers import read

    words = ["--model_name_or_path", "gpt2", "--use_peft", "--lora_r", "8", "--output_dir", "out"]
    values, _ = read(words=["trl", "sft", *words])
    model = ModelConfig(model_name_or_path="gpt2", use_peft=True, lora_r=8)
    training = SFTConfig(output_dir="out", report_to=[], use_cpu=True)
    example = {
        "sequence_length": (training.max_length, values["sequence_length"]),
        "lora.r": (model.lora_r, values["lora"]["r"]),
        "lora.lora_alpha": (model.lora_alpha, values["lora"]["lora_alpha"]),
        "lora.lora_dropout": (model.lora_dropout, values["lora"]["lora_dropout"]),
        "bf16": (training.bf16, values["mixed_precision"] == "bf16"),
        "dtype": (model.dtype, {"fp32": "float32"}.get(values["dtype"], values["dtype"])),
        "gradient_checkpointing": (training.gradient_checkpointing, values["gradient_checkpointing"]),
        **of_trainer(training, values)}
    defaults = of_dataclasses(SFTConfig, ModelConfig, ScriptArguments, DatasetMixtureConfig)
    return compared("trl", defaults | {"dtype": {"float32": "fp32"}.get(defaults["dtype"])}, example)


def of_plugin(name: str) -> Any:
    """The arguments module of an axolotl plugin, without the imports that running it would need."""
    import importlib.util

    import axolotl as package

    path = Path(package.__path__[0]) / "integrations" / name / "args.py"
    spec = importlib.util.spec_from_file_location(f"{name}_args", path)
    assert spec is not None and spec.loader is not None  # the path ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks annotations up there
    spec.loader.exec_module(module)
    return module
