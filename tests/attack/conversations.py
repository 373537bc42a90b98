"""Strategies for datasets of conversations: their rows, Parquet, pictures, and the processors that count their tokens."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from tests.attack import values
from tests.attack.documents import written
from tests.attack.inputs import Input

# rows ------------------------------------------------------------------------------------------------------------

def rows(picture: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Rows with conversations in every form; ``picture`` is what a row says of one."""
    text = values.mostly(st.sampled_from(("x", "<image>x", "<image><image>", "", "x" * 999, "日本\U0001f600")), values.odd())
    parts = st.lists(values.mostly(st.sampled_from(({"type": "text", "text": "x"}, {"type": "image"}, {"type": "image_url", "image_url": {"url": "a.png"}}))), max_size=3)
    turns = values.mostly(st.lists(values.mostly(st.one_of(
        st.fixed_dictionaries({"role": values.mostly(st.sampled_from(("system", "user", "assistant"))), "content": values.mostly(st.one_of(text, parts))}),
        st.fixed_dictionaries({"from": values.mostly(st.sampled_from(("human", "gpt"))), "value": text}))), max_size=4))
    forms = [{"messages": turns}, {"conversations": turns}, {"prompt": text, "completion": text}, {"instruction": text, "input": text, "output": text},
             {"query": text, "response": text, "history": values.mostly(st.just([["a", "b"]]))}, {"text": text}, {"x": text}]
    pictures = {"images": values.mostly(st.lists(picture, max_size=2), values.odd()), "image": values.mostly(picture)}
    return st.sampled_from(forms).flatmap(lambda form: values.mostly(st.fixed_dictionaries(form, optional=pictures)))


def whole_rows(picture: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Rows with conversations as they should be, one with a picture among them."""
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "日本 y"}]
    return st.one_of(st.just({"messages": said}), picture.map(lambda one: {"image": one, "conversations": [{"from": "human", "value": "<image>\nx"}, {"from": "gpt", "value": "y"}]}),
                     st.just({"prompt": said[:1], "completion": said[1:]}), st.sampled_from(({"text": "x"}, {"instruction": "x", "output": "y"})))


@st.composite
def datasets(draw: st.DrawFn) -> Input:
    """Files of rows with conversations."""
    picture = st.sampled_from(("a.png", "b.png"))
    found = draw(st.lists(st.one_of(whole_rows(picture), whole_rows(picture).flatmap(values.spoiled), rows(picture)), max_size=4))
    how = draw(st.sampled_from(("json", "jsonl", "jsonl")))
    text = values.as_json(found) if how == "json" else "\n".join(map(values.as_json, found))
    return Input("dataset", (f"d.{how}",), {f"d.{how}": draw(values.damaged(text.encode("utf-8", "surrogatepass")))})


NESTED_COLUMN = 60
"""Levels of the most nested column of a table."""

# Parquet ---------------------------------------------------------------------------------------------------------

@lru_cache
def columns() -> st.SearchStrategy[Any]:
    """Columns of a table: those of conversations, and of types that no dataset has."""
    import datetime
    import decimal

    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    said = [{"role": "user", "content": "<image>x"}, {"role": "assistant", "content": "y"}]
    usual = [("messages", [said] * 2, pa.list_(message)), ("images", [[{"bytes": small_picture("PNG"), "path": None}]] * 2, pa.list_(picture)),
             ("text", ["a", None], pa.string()), ("text", ["a", "a"], pa.dictionary(pa.int32(), pa.string())), ("image", [small_picture("JPEG")] * 2, pa.binary()),
             ("conversations", [json.dumps(said), None], pa.large_string()), ("prompt", [said, said[:1]], pa.list_(message)), ("completion", [said[1:]] * 2, pa.list_(message))]
    nested = pa.string()
    for _ in range(NESTED_COLUMN):
        nested = pa.list_(nested)
    odd = [("messages", [[], None], nested), ("text", [1, 2], pa.int64()), ("text", [b"\xff", b""], pa.binary()), ("messages", [None, None], pa.null()), ("messages", [[["user", "x"]], []], pa.list_(pa.list_(pa.string()))),
           ("messages", [[("role", "user")], []], pa.map_(pa.string(), pa.string())), ("", [1.5, float("nan")], pa.float64()), ("x", [2**62, -2**62], pa.timestamp("s")),
           ("x", [2**62, 0], pa.duration("s")), ("x", [decimal.Decimal(1), None], pa.decimal256(70)), ("x", [10**6, -10**6], pa.date32()), ("x\n", [True, None], pa.bool_()),
           ("text", [datetime.datetime(1, 1, 1), None], pa.timestamp("us", "Nowhere/X")), ("text", [datetime.time(1), None], pa.time64("ns"))]
    return st.one_of(st.sampled_from(usual), st.sampled_from(usual), st.sampled_from(odd))


@st.composite
def parquet(draw: st.DrawFn) -> Input:
    """Parquet files as pyarrow writes them, with odd types, with bytes damaged, or that unpack to much more."""
    import pyarrow as pa
    from pyarrow import parquet as files

    if values.seldom(draw, 100):  # a few bytes that stand for many rows
        rows = np.zeros(draw(st.sampled_from((20_000, 200_000, 1_000_000))), np.int32)
        table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array(rows), pa.array([draw(st.sampled_from(("", "x", "x" * 100)))]))})
    elif values.seldom(draw, 100):  # or for 0.1 to 10 GB
        text = pa.array(["a" * draw(st.sampled_from((100_000, 1_000_000)))])
        table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * draw(st.sampled_from((1_000, 10_000))), pa.int32()), text)})
    else:
        named = draw(st.lists(columns(), min_size=1, max_size=3))
        arrays, names = [pa.array(made, kind) for _, made, kind in named], [name for name, _, _ in named]
        table = pa.Table.from_arrays(arrays, names=names).slice(0, draw(st.sampled_from((2, 2, 1, 0))))
    stream = io.BytesIO()
    try:
        files.write_table(table, stream, compression=draw(st.sampled_from(("snappy", "none", "gzip", "zstd"))) if table.num_rows <= 2 else "zstd", version=draw(st.sampled_from(("1.0", "2.6"))),
                          use_dictionary=values.seldom(draw, 2) or table.num_rows > 2, store_schema=draw(st.booleans()), row_group_size=draw(st.sampled_from((1, 1_000))) if table.num_rows <= 20_000 else 100_000)
    except pa.ArrowException:  # a type that this version of Parquet has not
        hypothesis.reject()
    content = stream.getvalue()
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        place = draw(st.integers(0, len(content) - 1))
        content = content[:place] + bytes([draw(st.integers(0, 255))]) + content[place + 1:]
    return Input("dataset", ("d.parquet",), {"d.parquet": draw(values.damaged(content))})


# pictures --------------------------------------------------------------------------------------------------------

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "ICO", "PPM", "TGA", "PCX", "JPEG2000", "AVIF", "DDS", "SGI", "IM", "ICNS")


ENDLESS = ((b"\xff\xd8", b"\xff"), (b"\xff\xd8", b"\xff\xe1\0\4ab"), (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"%a: b\n"), (b"P6", b" "),
           (b"GIF89a\1\0\1\0\0\0\0", b"!\xfe\1a\0"), (b"\x89PNG\r\n\x1a\n", b"\0\0\0\1tEXta\xe8\xb7\xbeC"))
"""The beginning of a picture, and a piece of its header that may be there any number of times."""


@cache
def small_picture(form: str, orientation: int = 0, side: int = 24) -> bytes:
    """A picture's file, with the orientation that EXIF says, if any."""
    from PIL import Image

    stream, exif = io.BytesIO(), Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    more = {"exif": exif} if orientation and form in ("PNG", "JPEG", "WEBP", "TIFF") else {}
    try:
        Image.new("RGB", (side, side * 2)).save(stream, form, **more)
    except (OSError, KeyError, ValueError):  # an encoder that this Pillow lacks
        return small_picture("PNG", orientation, side)
    return stream.getvalue()


@st.composite
def picture_files(draw: st.DrawFn) -> bytes:
    """Pictures' files, in half of the cases with bytes of their header changed, cut off, or repeated."""
    if values.seldom(draw, 30):  # a header that does not end
        begin, piece = draw(st.sampled_from(ENDLESS))
        return begin + piece * draw(st.sampled_from((1 << 18, 1 << 22)))
    content = small_picture(draw(st.sampled_from(FORMATS)), draw(st.sampled_from((0, 0, 1, 6, 9))), draw(st.sampled_from((24, 1, 300))))
    for _ in range(draw(st.sampled_from((0, 0, 1, 3)))):
        place = draw(st.integers(0, min(len(content), 120) - 1))
        put = draw(st.sampled_from((b"\xff", b"\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\xff\xff")))
        content = content[:place] + put + content[place + len(put):]
    if values.seldom(draw, 6):
        content = content[:draw(st.integers(0, min(len(content), 200)))]
    return draw(values.damaged(content)) * (draw(st.sampled_from((1, 1, 1, 1, 1, 200))) if len(content) < 10_000 else 1)


@st.composite
def pictures(draw: st.DrawFn) -> Input:
    """Pictures that a row names, or has inside."""
    content = draw(picture_files())
    said = draw(values.mostly(st.sampled_from(("a.png", "file://a.png", {"path": "a.png", "bytes": None}, {"url": "a.png"})), st.one_of(values.odd(), st.sampled_from(
        ("https://x/y", "data:", "data:image/png;base64,!", {"path": ["a.png"]}, {"bytes": "a"}, ".", "/dev/zero", "a.png\0"))), 8))
    if values.seldom(draw, 3):
        said = "data:image/png;base64," + base64.b64encode(content).decode()
    return Input("picture", (json.dumps(said, default=str),), {"a.png": content})


# processors ------------------------------------------------------------------------------------------------------

PROCESSORS = ("tokenizer", "llava", "qwen2_5_vl")


@cache
def processor(name: str) -> dict[str, bytes]:
    """The files of a small processor, with classes and settings of a real one. It imports transformers."""
    from tests.predictor.conversations import processors

    with tempfile.TemporaryDirectory() as place:
        made = processors.tokenizer() if name == "tokenizer" else getattr(processors, name)()
        if name == "tokenizer":
            made.chat_template = processors.TEMPLATE
        made.save_pretrained(place)
        return {path.name: path.read_bytes() for path in Path(place).iterdir() if path.is_file()}


STATEMENTS = ("{% for m in messages %}%s{% endfor %}", "{% for m in messages %}{{ m['role'] }}%s{% endfor %}", "{% for p in messages[0]['content'] %}%s{% endfor %}", "{% if messages[0] %}%s{% endif %}",
              "{%- for m in messages -%}{% if loop.first %}%s{% endif %}{% endfor %}", "{% set s = 'a' %}%s{{ s }}", "{% macro f(x) %}%s{% endmacro %}{{ f(1) }}", "{% generation %}%s{% endgeneration %}",
              "{% for i in range(3) %}%s{% endfor %}", "{% set n = namespace(x=0) %}%s", "{% filter upper %}%s{% endfilter %}", "{# c #}%s", "{% raw %}%s{% endraw %}", "<|start|>%s<|end|>\n")
EXPRESSIONS = ("{{ m['content'] }}", "{{ messages[0]['content'] }}", "{{ messages | tojson }}", "{{ bos_token }}", "{{ eos_token }}", "<image>", "<|vision_start|><|image_pad|><|vision_end|>", "x",
               "{{ messages[-1].role | upper }}", "{{ strftime_now('%Y') }}", "{{ tools }}", "{{ add_generation_prompt }}", "{{ 'a' * 3 }}", "{{ messages | length }}")
MISTAKES = ("{{", "{%", "{% for", "{% endfor %}", "{{ x.y.z }}", "{{ messages[9] }}", "{{ raise_exception('no\nline') }}", "{{ raise_exception('x' * 9999) }}", "{% include 'x' %}", "{% import 'x' as y %}",
            "{% extends 'x' %}", "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{{ messages.append(1) }}", "{{ 1 / 0 }}", "{{ x | nothing }}", "{{ 'a' + 1 }}", "{{ -'a' }}", "{{ [1][['a']] }}",
            "{{ '%s' | format }}", "{{ '\ud800' }}", "{{ '\\ud800' }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% break %}", "{{ lipsum(9) }}", "{{ strftime_now('%') }}", "{{ " + "(" * 300 + "}}",
            "{{ " + "+".join("1" * 3000) + " }}", "{% if x %}" * 300, "{{ messages | tojson(indent='x') }}", "{{ dict(a=1) | map('x') | list }}", "\0", "{{ 9" + "9" * 5000 + " }}", "{{ super() }}", "{{ self }}", "{{ self._TemplateReference__context }}")
WITHOUT_END = ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{{ 'a' * 10**10 }}", "{{ 10**(10**10) }}", "{{ range(10**12) | list }}", "{{ 'a' | center(10**10) }}",
               "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "{{ 'x' * 3000000 }}", "{{ '%999999999d' % 1 }}", "{{ lipsum(99999) }}")
"""Templates that take time or memory without a bound; each takes seconds, so they are seldom."""


@st.composite
def chat_templates(draw: st.DrawFn) -> str:
    """Chat templates: those of jinja2's grammar, and with mistakes."""
    text = draw(st.sampled_from(EXPRESSIONS))
    for _ in range(draw(st.integers(0, 4))):
        text = draw(st.sampled_from(STATEMENTS)).replace("%s", text) + draw(st.sampled_from(("", *EXPRESSIONS)))
    if values.seldom(draw, 4):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.sampled_from(MISTAKES)) + text[place:]
    return text + (draw(st.sampled_from(WITHOUT_END)) if values.seldom(draw, 40) else "")


TOKENIZER_PARTS: tuple[dict[str, Any], ...] = (
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": "a"}},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 1_000}] * 30}}, {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(x|xx)*y"}, "behavior": "Isolated", "invert": False}}, {"pre_tokenizer": None}, {"decoder": None},
    {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [], "special_tokens": {}}},
    {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}, {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]], "byte_fallback": False}},
    {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "continuing_subword_prefix": "###"}}, {"model": {"type": "BPE", "vocab": {}, "merges": []}},
    {"model": {"type": "WordPiece", "vocab": {"a": 2**32 - 1}, "unk_token": "?", "continuing_subword_prefix": "", "max_input_chars_per_word": 0}},
    {"truncation": {"direction": "Left", "max_length": 2, "strategy": "OnlySecond", "stride": 1}}, {"truncation": {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 9}},
    {"padding": {"strategy": {"Fixed": 10**6}, "direction": "Right", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": "p"}})
"""Parts of ``tokenizer.json`` over which the tokenizers library fails or panics, when it reads them or with the first text, or takes long."""


def tokens() -> st.SearchStrategy[Input]:
    """Datasets whose tokens are counted with a small processor, whose template, settings or vocabulary may be wrong.

    The processors are made beforehand: transformers draws random numbers, which a strategy may not."""
    return _tokens({name: processor(name) for name in PROCESSORS})


@st.composite
def _tokens(draw: st.DrawFn, processors: Mapping[str, Mapping[str, bytes]]) -> Input:
    files = dict(processors[draw(st.sampled_from(PROCESSORS))])
    if not values.seldom(draw, 3):
        files["chat_template.jinja"] = draw(chat_templates()).encode("utf-8", "surrogatepass")
    if values.seldom(draw, 4):
        name = draw(st.sampled_from(sorted(files)))
        files[name] = draw(written(draw(values.changed(json.loads(files[name]))), "json")) if name.endswith(".json") else draw(values.damaged(files[name]))
    elif values.seldom(draw, 6):
        files["tokenizer.json"] = json.dumps(json.loads(files["tokenizer.json"]) | draw(st.sampled_from(TOKENIZER_PARTS))).encode()
    picture = st.one_of(st.sampled_from(("a.png", "b.png")), picture_files().map(lambda content: "data:," + base64.b64encode(content).decode()))
    found = draw(st.lists(draw(st.sampled_from((whole_rows(picture), whole_rows(picture), rows(picture)))), min_size=1, max_size=3))
    if values.seldom(draw, 8):
        found.append(draw(st.sampled_from(({"text": "\ud800"}, {"text": "a" * 3_000_000}, {"messages": [{"role": "user", "content": "\udfff"}]}, {"text": "a " * 400_000}, {"text": "\0\ufffe" * 999}))))
    files |= {"d.jsonl": "\n".join(map(values.as_json, found)).encode("utf-8", "surrogatepass"), "a.png": small_picture("PNG"), "b.png": small_picture("JPEG", 6, 300)}
    words = ("d.jsonl", ".")
    return draw(st.sampled_from((Input("tokens", words, files), Input("tokens", words, files), Input("command", ("samples", "d.jsonl", "--processor", "."), files))))
