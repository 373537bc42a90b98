"""Numbers of a model's configuration of which no model is made are refused before anything is imported."""

import json
import math
import subprocess
import sys

import pytest

from predictor.common.errors import InputError
from predictor.model import config_numbers, models

LLAMA = models.find("llama-3.2-1b").document
LLAVA = models.find("llava-1.5-7b").document


def refused(tmp_path, document) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        models.find(str(path))
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("key, value, expected", [
    ("num_hidden_layers", 100_000, "num_hidden_layers is 100000: give a whole number from 1 to 1,000"),
    ("num_hidden_layers", -1, "num_hidden_layers is -1: give a whole number from 1 to 1,000"),
    ("hidden_size", 0, "hidden_size is 0: give a whole number from 1 to 1,048,576"),
    ("hidden_size", 64.5, "hidden_size is 64.5: give a whole number from 1 to 1,048,576"),
    ("hidden_size", True, "hidden_size is True: give a whole number from 1 to 1,048,576"),
    ("num_attention_heads", "8", 'num_attention_heads is "8": give a whole number from 1 to 16,384'),
    ("num_key_value_heads", [8, 0], "num_key_value_heads[1] is 0: give a whole number from 1 to 16,384"),
    ("vocab_size", 1 << 40, "vocab_size is 1099511627776: give a whole number from 1 to 10,000,000"),
    ("rope_scaling", {"factor": math.nan}, "rope_scaling.factor is nan: give a finite number"),
    ("rms_norm_eps", math.inf, "rms_norm_eps is inf: give a finite number"),
    ("bos_token_id", 1 << 64, "bos_token_id is 18446744073709551616: give a number that fits into 64 bits"),
], ids=str)
def test_a_number_of_which_no_model_is_made_is_refused(tmp_path, key, value, expected):
    assert refused(tmp_path, LLAMA | {key: value}) == expected


@pytest.mark.parametrize("slip", ["num_hidden_layer", "num_attention_head", "intermediate_sizes"])
def test_a_key_that_is_one_letter_off_is_refused_where_the_right_one_is_missing(tmp_path, slip):
    right = next(key for key in LLAMA if key[:-2] == slip[:len(key) - 2])
    document = {slip if key == right else key: value for key, value in LLAMA.items()}
    assert refused(tmp_path, document) == f'"{slip}" is no key that models have (did you mean "{right}"?)'
    (tmp_path / "config.json").write_text(json.dumps(document | LLAMA))
    models.find(str(tmp_path / "config.json"))



@pytest.mark.parametrize("section", ["text_config", "vision_config"])
def test_numbers_of_sections_are_checked(tmp_path, section):
    document = LLAVA | {section: LLAVA[section] | {"num_hidden_layers": 0}}
    assert refused(tmp_path, document) == f"{section}.num_hidden_layers is 0: give a whole number from 1 to 1,000"


def test_heads_that_keys_and_values_are_not_shared_by_evenly_are_refused(tmp_path):
    document = {"model_type": "llava", "text_config": LLAMA | {"num_attention_heads": 32, "num_key_value_heads": 7}}
    assert refused(tmp_path, document) == ("num_attention_heads is 32 and num_key_value_heads is 7: give a multiple of "
                                           "num_key_value_heads")


@pytest.mark.parametrize("name", models.known_names())
def test_known_models_pass(name):
    config_numbers.check(models.find(name).document, name)


@pytest.mark.parametrize("values", [
    {"pad_token_id": -1, "sliding_window": None, "vision_feature_layer": -2, "num_experts": 0, "head_dim": 0},
    {"num_key_value_heads": None, "image_size": [224, 448], "time_step_limit": [0.0, math.inf]},
], ids=str)
def test_values_that_stand_for_none_pass(values):
    config_numbers.check(LLAMA | values, "x")


def test_the_configurations_of_transformers_pass():
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    for name in ("llama", "qwen2_5_vl", "gemma3", "mamba2", "mllama", "swin", "whisper", "deepseek_v3", "bamba", "llava"):
        config_numbers.check(json.loads(json.dumps(auto.CONFIG_MAPPING[name]().to_dict(), default=str)), name)


def test_numbers_are_refused_without_torch(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"num_hidden_layers": 100_000}))
    program = ("import sys; sys.modules |= dict.fromkeys(('torch', 'transformers')); from predictor.cli import main; "
               "sys.exit(main(['predict', sys.argv[1], '--sequence-length', '64']))")
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (f"peakcast: error: {path}: num_hidden_layers is 100000: give a whole number from 1 to "
                           "1,000\n")
