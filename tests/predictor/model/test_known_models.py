"""Known names have the number of unique parameters that their publishers state, within 0.1 %."""

from __future__ import annotations

import pytest
import torch

from predictor.answer import model_list
from predictor.model import models, parser

PUBLISHED = {
    "bert-base": 109_514_298,
    "bloom-560m": 559_214_592,
    "convnext-tiny": 28_589_128,
    "efficientnet-b0": 5_288_548,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2b": 2_506_172_416,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-27b": 27_432_406_640,
    "gemma-3-4b": 4_300_079_472,
    "gemma-7b": 8_537_680_896,
    "gpt-neo-1.3b": 1_315_575_808,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "idefics3-8b": 8_460_000_000,  # rounded on its page
    "internvl3-1b": 938_193_024,
    "internvl3-2b": 2_088_957_440,
    "internvl3-8b": 7_944_373_760,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-11b-vision": 10_642_941_475,
    "llama-3.2-11b-vision-instruct": 10_670_220_835,
    "llama-3.2-1b": 1_235_814_400,
    "llava-1.5-13b": 13_351_494_656,
    "llava-1.5-7b": 7_063_427_072,
    "llava-next-mistral-7b": 7_566_747_648,
    "llava-next-vicuna-13b": 13_351_494_656 + 5_120,  # LLaVA-1.5 and the embedding of a newline
    "llava-next-vicuna-7b": 7_063_427_072 + 4_096,
    "llava-next-video-7b": 7_063_427_072 + 4_096,
    "llava-onevision-qwen2-0.5b": 893_618_208 + 64 * 896,  # lmms-lab's, and the rows that its conversion adds
    "llava-onevision-qwen2-7b": 8_030_348_832 + 2 * 64 * 3_584,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mobilenet-v2": 3_504_872 + 1_281,  # torchvision's, and a class "background"
    "opt-1.3b": 1_315_758_080,
    "opt-125m": 125_239_296,
    "paligemma-3b": 2_923_466_480,
    "paligemma2-3b": 3_032_242_416,
    "pixtral-12b": 12_247_782_400 + 403_489_792 + 31_467_520,  # Mistral-Nemo, and by hand the tower and the projector
    "qwen2-audio-7b": 8_397_094_912,
    "qwen2-vl-2b": 2_208_985_600,
    "qwen2-vl-72b": 73_405_560_320,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen3-8b": 8_190_735_360,
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "resnet-101": 44_549_160,
    "resnet-50": 25_557_032,
    "roberta-base": 124_697_433,
    "smolvlm-2.2b": 2_246_272_880,
    "smolvlm-256m": 256_484_928,
    "smolvlm-500m": 507_482_304,
    "smolvlm2-2.2b": 2_246_784_880,
    "swin-tiny": 28_288_354,
    "t5-base": 222_903_552,
    "t5-small": 60_506_624,
    "vit-base": 86_567_656,
    "whisper-large-v3": 1_543_490_560,
}


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


ROUNDED = {
    "apertus-8b": 8.05,
    "aya-vision-32b": 33.0,
    "aya-vision-8b": 8.63,
    "bart-large": 0.406,
    "command-a-vision": 112,
    "command-r": 34.98,
    "deepseek-v2-lite": 15.7,
    "deepseek-vl-1.3b": 1.98,
    "deepseek-vl-7b": 7.34,
    "distilbert-base": 0.067,
    "ernie-4.5-0.3b": 0.36,
    "ernie-4.5-21b-a3b": 21.8,
    "exaone-4.0-32b": 32.0,
    "falcon-7b": 6.92,
    "gemma-4-26b-a4b": 26.0,
    "gemma-4-31b": 31.0,
    "gemma-4-e2b": 5.1,
    "gemma-4-e4b": 8.0,
    "glm-4-9b": 9.4,
    "glm-4.1v-9b": 10.3,
    "glm-4.5v": 108,
    "glm-4.6v": 108,
    "glm-4.6v-flash": 10.3,
    "gpt-j-6b": 6.05,
    "gpt-neox-20b": 20.6,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    "granite-3.0-8b": 8.17,
    "internvl3-14b": 15.1,
    "internvl3-38b": 38.4,
    "internvl3.5-1b": 1.06,
    "internvl3.5-2b": 2.35,
    "internvl3.5-4b": 4.73,
    "internvl3.5-8b": 8.53,
    "janus-pro-1b": 2.09,
    "janus-pro-7b": 7.42,
    "lfm2-vl-1.6b": 1.58,
    "lfm2-vl-3b": 3.0,
    "lfm2-vl-450m": 0.451,
    "llama-3.2-3b": 3.21,
    "llama-4-scout": 109,
    "minicpm-v-4.6": 1.3,
    "ministral-3-14b": 13.9,
    "ministral-3-3b": 3.8,
    "ministral-3-8b": 8.9,
    "mistral-small-3.1-24b": 24.0,
    "mixtral-8x7b": 46.7,
    "modernbert-base": 0.1496,
    "olmo-2-7b": 7.3,
    "olmo-7b": 6.89,
    "olmoe-1b-7b": 6.92,
    "ovis2-1b": 1.13,  # without the second copy of the embedding that checkpoints have as a head
    "ovis2-2b": 2.22,  # without the second copy of the embedding that checkpoints have as a head
    "phi-2": 2.78,
    "phi-3-mini-4k": 3.82,
    "phi-3.5-moe": 41.9,
    "pythia-1.4b": 1.41,
    "qwen1.5-moe-a2.7b": 14.3,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-14b": 14.77,
    "qwen2.5-3b": 3.09,
    "qwen2.5-omni-3b": 4.7,
    "qwen2.5-omni-7b": 8.93,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.72,
    "qwen3-14b": 14.77,
    "qwen3-30b-a3b": 30.5,
    "qwen3-32b": 32.76,
    "qwen3-4b": 4.02,
    "qwen3-next-80b-a3b": 79.7,
    "qwen3-vl-235b-a22b": 236,
    "qwen3-vl-30b-a3b": 31.07,
    "qwen3-vl-32b": 33.4,
    "qwen3.5-0.8b": 0.87,
    "qwen3.5-35b-a3b": 36.0,
    "qwen3.5-9b": 9.65,
    "regnet-y-040": 0.0206,
    "seed-oss-36b": 36.15,
    "smollm3-3b": 3.08,
    "stablelm-3b": 2.8,
    "starcoder2-3b": 3.03,
    "starcoder2-7b": 7.17,
    "xlm-roberta-base": 0.278,
}
"""Billions of parameters as their publishers round them."""


@pytest.mark.parametrize("name, published", PUBLISHED.items(), ids=PUBLISHED)
def test_a_known_name_has_the_published_number_of_parameters(name, published):
    model = parser.build_plain(models.find(name), "sdpa")
    assert type(model).__name__ in models.find(name).document["architectures"]
    assert abs(parameters(model) / published - 1) <= 0.001


@pytest.mark.parametrize("name, billions", ROUNDED.items(), ids=ROUNDED)
def test_a_known_name_has_about_the_number_of_parameters_that_is_said_of_it(name, billions):
    assert abs(model_list.shipped()[name].parameters / 1e9 / billions - 1) <= 0.035


def test_every_known_name_has_a_published_number():
    assert {*PUBLISHED, *ROUNDED} == {*models.known_names()}
