"""Processors of small vocabularies, with the classes and settings of real ones: no file has to be downloaded."""

from __future__ import annotations

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}PLACE{% else %}{{ p['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|end|>\n{% endfor %}")
QWEN = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"


def tokenizer(*special: str, **named: str) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each byte, and these special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=bytewise, bos_token="<|start|>", eos_token="<|end|>",
                                    pad_token="<pad>", extra_special_tokens=named or None)
    found.add_special_tokens({"additional_special_tokens": [*special, *named.values()]})
    return found


def _template(place: str) -> str:
    return TEMPLATE.replace("PLACE", place)


def llava():
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    return transformers.LlavaProcessor(images, tokenizer("<image>"), patch_size=14, num_additional_image_tokens=1,
                                       vision_feature_select_strategy="default", chat_template=_template("<image>"))


def llava_next():
    return transformers.LlavaNextProcessor(
        transformers.LlavaNextImageProcessor(), tokenizer("<image>"), patch_size=14, num_additional_image_tokens=1,
        vision_feature_select_strategy="default", chat_template=_template("<image>"))


def qwen2_5_vl():
    return transformers.Qwen2_5_VLProcessor(
        transformers.Qwen2VLImageProcessor(), tokenizer(*QWEN), transformers.Qwen2VLVideoProcessor(),
        chat_template=_template("<|vision_start|><|image_pad|><|vision_end|>"))


def qwen3_vl():
    return transformers.Qwen3VLProcessor(
        transformers.Qwen2VLImageProcessor(patch_size=16), tokenizer(*QWEN), transformers.Qwen3VLVideoProcessor(),
        chat_template=_template("<|vision_start|><|image_pad|><|vision_end|>"))


def gemma3():
    letters = tokenizer(boi_token="<soi>", eoi_token="<eoi>", image_token="<img>")
    return transformers.Gemma3Processor(transformers.Gemma3ImageProcessor(), letters, chat_template=_template("<soi>"))


def internvl():
    letters = tokenizer(start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>",
                        video_token="<video>")
    images = transformers.GotOcr2ImageProcessor(crop_to_patches=True, size={"height": 448, "width": 448})
    return transformers.InternVLProcessor(images, letters, transformers.InternVLVideoProcessor(),
                                          chat_template=_template("<IMG_CONTEXT>"))


PROCESSORS = (llava, llava_next, qwen2_5_vl, qwen3_vl, gemma3, internvl)
SIZES_MATTER = (llava_next, qwen2_5_vl, qwen3_vl, internvl)
