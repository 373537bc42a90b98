"""The tokens of conversations: the processor's chat template, its replacement of each picture, and its tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from predictor.common.errors import InputError
from predictor.common.installing import pip_install
from predictor.common.progress import Progress
from predictor.common.suggestions import quoted
from predictor.conversations import pictures, rows, templates
from predictor.conversations.rows import Conversation
from predictor.conversations.templates import Refused
from predictor.conversations.tokenizer_failures import Failed, failures
from predictor.workload.samples import MOST, Samples, Sizes

AT_ONCE = 256
"""Samples whose texts are given to the tokenizer together."""
LONGEST = 1 << 20
"""Characters of a sample's text, and of texts that are given to the tokenizer together. It takes 300 bytes for each."""
LONGEST_WITH_PICTURES = 1 << 23
"""Characters of a sample's text with the places of its pictures' tokens, of which each token has many."""
NAME = "name a directory with the files of a processor or tokenizer, or a hub id in the local cache"
"""What to do where a processor cannot be used."""
TWO_SIZES = ((224, 224), (448, 896))
"""Heights and widths of pictures that a processor treats alike only if it treats all alike."""


def read(path: str, processor: str, image_folder: str | None = None, progress: Progress | None = None) -> Samples:
    """Counts the samples of a dataset.

    A conversation is formatted by the chat template of the processor. A text without turns gets the tokenizer's own
    special tokens and the token that ends a text, as in TRL's SFTTrainer (trl 1.16, trainer/sft_trainer.py, add_eos).
    Frameworks that have templates of their own may count a few tokens more or fewer.

    Args:
        path: a file of rows (:mod:`predictor.conversations.rows`).
        processor: a directory with the files of the model's processor or tokenizer, or a hub id in the local cache.
        image_folder: where relative paths of pictures begin; default: the directory of the dataset.
        progress: wraps the groups of samples that are counted together.

    Returns:
        Tokens and images of each sample, in the order of the rows, and the sizes of pictures if the processor treats
        them differently.

    Raises:
        InputError: a file cannot be read, a row is wrong, or the processor cannot be loaded or refuses a sample.
    """
    counter = Counter(processor)
    folder = os.path.dirname(path) if image_folder is None else image_folder
    found = rows.read(path)
    groups = [found[start:start + AT_ONCE] for start in range(0, len(found), AT_ONCE)]
    tokens: list[int] = []
    sizes: list[Sizes] = []
    for group in progress(groups) if progress else groups:
        texts = []
        for where, conversation in group:
            sizes.append(tuple(pictures.size(said, folder, where) for said in conversation.pictures))
            texts.append(_checked(counter.text(conversation, sizes[-1], where), bool(sizes[-1]), where))
        tokens += counter.lengths(texts)
    for (where, _), count, of_sample in zip(found, tokens, sizes):
        for number, what, least, most in ((count, "tokens", 1, MOST[0]), (len(of_sample), "images", 0, MOST[1])):
            if not least <= number <= most:
                raise InputError(f"{where}: has {number:,} {what}: must be {least} to {most:,}")
    counted = Samples(np.array(tokens, np.int64), np.array([len(of_sample) for of_sample in sizes], np.int64))
    return replace(counted, pictures=tuple(sizes)) if any(sizes) and counter.sizes_matter else counted


def _checked(found: tuple[str, bool], has_pictures: bool, where: str) -> tuple[str, bool]:
    """A text that a tokenizer can take, in a time that is worth waiting for."""
    most = LONGEST_WITH_PICTURES if has_pictures else LONGEST
    if len(found[0]) > most:
        raise InputError(f"{where}: is a text of {len(found[0]):,} characters: must have at most {most:,}")
    try:
        found[0].encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: has half a character (a surrogate alone), which is no text") from None
    return found


class Counter:
    """A processor of transformers, or a tokenizer alone, that counts tokens.

    Raises:
        InputError: transformers is missing, or cannot load it from this machine.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._processor = _loaded(name)
        self._tokenizer = getattr(self._processor, "tokenizer", self._processor)
        self._replacement = lru_cache(maxsize=None)(self._replaced)

    @property
    def sizes_matter(self) -> bool:
        """Whether pictures of different sizes have different tokens.

        Raises:
            InputError: the processor fails on a picture of such a size.
        """
        try:
            with failures():
                return len(set(map(self._replacement, TWO_SIZES))) > 1
        except Failed as error:
            raise InputError(f"--processor {quoted(self.name)}: fails on a blank picture: {error}: {NAME}") from None

    def text(self, conversation: Conversation, sizes: Sizes, where: str) -> tuple[str, bool]:
        """A sample's text, each picture's tokens included, and whether the tokenizer is to add its special tokens.

        Raises:
            InputError: the processor takes no pictures, has no chat template, or refuses the conversation.
        """
        if sizes and not hasattr(self._processor, "image_processor"):
            raise InputError(f"{where}: has pictures, but {quoted(self.name)} is a tokenizer alone: name a processor")
        if not conversation.messages:
            end = self._tokenizer.eos_token or ""
            return conversation.text + ("" if conversation.text.endswith(end) else end), True
        if getattr(self._processor, "chat_template", None) is None:
            raise InputError(f"{where}: is a conversation, but {quoted(self.name)} has no chat template: name files "
                             "of a model that has one")
        try:
            with failures(Refused):
                text = self._rendered(self._messages(conversation))
                replacements = [self._replacement(size) for size in sizes]
                return self._processor.get_text_with_replacements([text], replacements)[0][0] if sizes else text, False
        except Refused as error:
            raise InputError(f"{where}: {quoted(self.name)}: {error}") from None
        except Failed as error:
            raise InputError(f"{where}: {quoted(self.name)} refuses it: {error}") from None

    def lengths(self, texts: Sequence[tuple[str, bool]]) -> list[int]:
        """The number of tokens of each text.

        Raises:
            InputError: the tokenizer fails.
        """
        counts = np.zeros(len(texts), np.int64)
        for special in (False, True):
            rows = [number for number, (_, adds) in enumerate(texts) if adds == special]
            for part in _parts(rows, [len(text) for text, _ in texts]):
                counts[part] = self._counted([texts[row][0] for row in part], special)
        return counts.tolist()

    def _counted(self, texts: list[str], special: bool) -> list[int]:
        """The number of tokens of each text, which the tokenizer takes together."""
        try:
            with failures():
                return [len(ids) for ids in self._tokenizer(texts, add_special_tokens=special)["input_ids"]]
        except Failed as error:
            raise InputError(
                f"--processor {quoted(self.name)}: its tokenizer fails on the texts: {error}: {NAME}") from None

    def _messages(self, conversation: Conversation) -> list[dict[str, Any]]:
        """The messages as templates take them: in parts for a processor of pictures, as one text for a tokenizer."""
        if self._processor is self._tokenizer:
            return [{"role": role, "content": "".join(filter(None, parts))} for role, parts in conversation.messages]

        def in_parts(parts: Sequence[str | None]) -> list[dict[str, str]]:
            return [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]

        return [{"role": role, "content": in_parts(parts)} for role, parts in conversation.messages]

    def _rendered(self, messages: list[dict[str, Any]]) -> str:
        """The text that the chat template makes of messages, as transformers' apply_chat_template asks for it.

        A class with a function of its own in place of a template is asked itself.
        (transformers 5.17, processing_utils.py and tokenization_utils_base.py.)
        """
        from transformers import PreTrainedTokenizerBase, ProcessorMixin

        function = type(self._processor).apply_chat_template
        if function is PreTrainedTokenizerBase.apply_chat_template:
            template = self._processor.get_chat_template()
        elif function is ProcessorMixin.apply_chat_template:
            template = self._processor.chat_template
            template = template["default"] if isinstance(template, dict) else template
        else:
            return self._processor.apply_chat_template(messages, tokenize=False)
        return templates.shared(LONGEST).render(template, messages, self._tokenizer.special_tokens_map)

    def _replaced(self, size: tuple[int, int]) -> str:
        """The text that takes a picture's place, from a blank picture of that height and width.

        (transformers 5, processing_utils.py, ProcessorMixin.__call__: images are processed, and the text of each
        replaces its place.)
        """
        from PIL import Image

        processor = self._processor
        merged = processor._merge_kwargs(
            processor.valid_processor_kwargs, tokenizer_init_kwargs=self._tokenizer.init_kwargs, return_tensors="np")
        images = processor.image_processor.fetch_images([Image.new("RGB", size[::-1])])
        return processor._process_images(images, **merged["images_kwargs"])[1][0]


def _parts(rows: Sequence[int], characters: Sequence[int]) -> Iterator[list[int]]:
    """Parts of some rows, in order, with :data:`LONGEST` characters at most, or one row that has more."""
    part: list[int] = []
    for row in rows:
        if part and sum(characters[one] for one in part) + characters[row] > LONGEST:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _loaded(name: str) -> Any:
    """The processor, or else the tokenizer, of files on this machine."""
    try:
        from transformers import AutoProcessor
    except ImportError:
        raise InputError("a dataset's tokens are counted with transformers: "
                         f"{pip_install('peakcast[trace]')}") from None
    try:
        with failures():
            return AutoProcessor.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Failed as error:
        missing = not os.path.isdir(name) and str(error).startswith(OSError.__name__)
        reason = "no such directory, and not in the local Hugging Face cache" if missing else \
            f"transformers cannot load it: {error}"
        raise InputError(f"--processor {quoted(name)}: {reason}: {NAME}") from None
