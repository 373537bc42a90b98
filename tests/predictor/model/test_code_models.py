"""Models outside transformers: finding their function, rejected ones, and the shapes that their formulas cover.

``tests/calibrate/truth/test_code_models_truth.py`` compares their predictions with measured jobs.
"""

from __future__ import annotations

import json
import sys

import pytest

from predictor.cli import main
from predictor.common import storage
from predictor.common.errors import InputError
from predictor.common.gpus import DEFAULT
from predictor.common.gpus import find as gpu
from predictor.events.sizes import Shape
from predictor.formula import store
from predictor.formula.formula_key import formula_key
from predictor.jobs import dispatch
from predictor.model import code_models, models, parser
from predictor.model.model_config import Modality
from predictor.model.request import Request
from predictor.trace.inputs import inputs_of
from predictor.workload.workload import Workload
from tests.calibrate.own_model import VOCABULARY, WIDTH

OWN = "tests/calibrate/own_model.py"
HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x):
        return self.line(x).mean()
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path_factory.mktemp("cache")))


def written(directory, body: str) -> str:
    """Names the function ``make`` of a file with this end."""
    path = directory / "mine.py"
    path.write_text(HEAD + body)
    return f"{path}:make"


def predicted(model: str, **changes):
    return dispatch.prepare(Workload(model=model, profile="none", **changes))


def regime(job) -> list[str]:
    return job.formula.provenance["key"]["regime"]


@pytest.mark.parametrize("path", ["~nosuchuser/x.py", "~/x.py"])
def test_a_home_that_is_not_known_is_one_clear_line(path, capsys, monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert main(["predict", f"{path}:f", "--sequence-length", "8"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and path in said and "give the whole path" in said


@pytest.mark.parametrize("function, kind", [("train", Modality.IMAGE_TEXT), ("cuts", Modality.TEXT), ("pictures", Modality.IMAGE)])
def test_what_a_sample_has_follows_from_the_arguments(function, kind):
    assert models.find(f"{OWN}:{function}").kind is kind


def test_a_module_that_can_be_imported_is_found_with_its_file():
    named = models.find("tests.calibrate.own_model:train")
    assert named.fingerprint == models.find(f"{OWN}:train").fingerprint


def test_finding_a_function_runs_nothing(tmp_path):
    path = written(tmp_path, "raise SystemExit\ndef make(batch): pass\n")
    assert models.find(path).takes == ("batch",)


@pytest.mark.parametrize("model, message", [
    ("nowhere.py:make", "nowhere.py: no such file"),
    ("no_such_module:make", "no module 'no_such_module' with Python source"),
    ("math:sqrt", "no module 'math' with Python source"),
    (f"{OWN}:trian", 'no function \'trian\' at the top of the file (did you mean "train"?)'),
])
def test_a_name_that_leads_nowhere_is_refused(model, message):
    with pytest.raises(InputError) as error:
        models.find(model)
    assert message in str(error.value)


@pytest.mark.parametrize("body, message", [
    ("def make(batch, width): pass", "takes 'width'"),
    ("def make(images): pass", "must take batch"),
    ("def make(batch: pass", "not valid Python"),
    ("def make(batch): raise ValueError('no\\nluck')", "make raised ValueError: no luck"),
    ("def make(batch): return Net()", "must return (nn.Module, dict of tensors), not Net"),
    ("def make(batch): return Net(), {'x': [1]}", 'must have tensors by name, not "x": list'),
    ("def make(batch): return nn.Identity(), {}", "has no parameters"),
    ("import itertools\nsizes = itertools.count(8)\n"
     "def make(batch): return nn.Linear(8, next(sizes)), {'input': torch.ones(batch, 8)}", "is another model at"),
    ("import no_such_thing\ndef make(batch): pass", "raised ModuleNotFoundError"),
    ("import sys\ndef make(batch): sys.exit(0)", "make raised SystemExit"),
    ("def make(batch): return nn.GRU(8, 8), {'input': torch.ones(batch, 2, 8)}", "a recurrent layer (GRU)"),
    ("def make(batch): return nn.Linear(8, 8), {'input': torch.ones(batch, 8)}", "gives no loss but a Tensor of shape"),
    ("def make(batch): return Net(), {'y': torch.ones(batch, 8)}", "unexpected keyword argument 'y'"),
])
def test_what_is_wrong_with_the_code_is_one_line(tmp_path, capsys, body, message):
    assert main(["predict", written(tmp_path, body)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and message in error


def test_what_the_code_prints_is_not_in_the_answer(tmp_path, capsys):
    path = written(tmp_path, "print('imported')\ndef make(batch):\n    print('called')\n"
                             "    return Net(), {'x': torch.ones(batch, 8)}")
    assert main(["predict", path, "--no-gradient-checkpointing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_requested_bytes"] > 0


@pytest.mark.parametrize("changes", [
    {"recipe": "lora"}, {"gradient_checkpointing": True}, {"engine": "fsdp2", "data_parallel_size": 2},
    {"use_liger_kernel": True}, {"image_size": 64}, {"padding": "right"},
], ids=lambda changes: next(iter(changes)))
def test_what_was_not_compared_is_refused(changes):
    with pytest.raises(InputError, match="with a model from code"):
        predicted(f"{OWN}:train", sequence_length=64, **changes)


def test_a_batch_without_hidden_size_fills_no_automatic_bucket():
    with pytest.raises(InputError, match="this model has none: give the number"):
        predicted(f"{OWN}:pictures", zero_stage=2, data_parallel_size=2)


def test_a_default_dtype_is_that_of_the_workload():
    config = code_models.at_shape(models.find(f"{OWN}:pictures"), Shape(2, 0, 2))
    assert {p.element_size() for p in code_models.build(config, "fp16").parameters()} == {2}


def test_integers_keep_their_values():
    config = code_models.at_shape(models.find(f"{OWN}:train"), Shape(2, 8, 3))
    batch = inputs_of(config, code_models.build(config, "bf16"), None, None, "bf16").batch(config.shape, "none")
    assert batch["owners"].tolist() == [0, 1, 0] and batch["pictures"].is_meta


@pytest.mark.parametrize("code", [
    "torch.tensor(1e4) ** -(torch.arange(0, 8, 2) / 8)",
    "torch.outer(torch.arange(4), torch.tensor(1e4) ** -torch.linspace(0, 1, 4))",
    "torch.stack([torch.tensor(1.0), torch.rand(()), torch.tensor(2)])",
    "torch.rand(4)[torch.arange(4) % 2 == 0]",
    "torch.zeros(4, 4).masked_fill(torch.eye(4, dtype=torch.bool), torch.tensor(-1.0))",
    "torch.rand(()) * (torch.arange(4) / 4)",
    "torch.linspace(0, 1, 4).mul_(torch.rand(4))",
    "torch.zeros(4, 2).index_copy_(1, torch.tensor([0]), torch.arange(4)[:, None] / 4)",
    "torch.as_tensor(torch.rand(4))",
    "torch.linspace(0, 1, 4).expm1().cumsum(0)[torch.tensor(3)]",
    "torch.polar(torch.linspace(0, 1, 4), torch.linspace(0, 1, 4))",
])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_tensors_of_one_gpu_go_together_whether_their_values_are_known_or_not(tmp_path, code, dtype):
    model = written(tmp_path, f"def make(batch):\n    net = Net()\n    net.register_buffer('made', {code})\n"
                              "    return net, {'x': torch.ones(batch, 8)}")
    assert predicted(model, dtype=dtype).run(None).peak > 0


@pytest.mark.parametrize("code, rate", [("torch.linspace(0, 0.5, 3)[1].item()", 0.25),
                                        ("torch.tensor([0.25, 1]).tolist()[0]", 0.25),
                                        ("float(torch.tensor(2.0) ** -torch.arange(3)[2])", 0.25)])
def test_code_reads_the_numbers_that_it_told(tmp_path, code, rate):
    model = written(tmp_path, f"def make(batch):\n    net = nn.Sequential(Net())\n    net.rate = {code}\n"
                              "    return net, {'x': torch.ones(batch, 8)}")
    assert code_models.build(code_models.at_shape(models.find(model), Shape(1, 0, 1)), "fp32").rate == rate


def test_weights_are_not_made():
    model = code_models.build(code_models.at_shape(models.find(f"{OWN}:rotary"), Shape(1, 8, 0)), "bf16")
    assert all(p.is_meta for p in model.parameters()) and not model.turns.is_meta


def test_a_shared_weight_stays_shared_when_the_model_moves():
    config = code_models.at_shape(models.find(f"{OWN}:train"), Shape(2, 8, 2))
    model = code_models.on_meta(code_models.build(config, "bf16"))
    assert model.head.weight is model.words.weight
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}


@pytest.mark.parametrize("changes, stem", [({}, False), ({"patterns": parser.Patterns(trainable=("stem",))}, True), ({"recipe": "full"}, True)],
                         ids=["as-it-left-it", "pattern", "full"])
def test_the_function_says_what_trains(changes, stem):
    config = code_models.at_shape(models.find(f"{OWN}:pictures"), Shape(2, 0, 2))
    model = parser.build(config, attn_implementation="sdpa", **{"recipe": "finetune"} | changes)
    assert model.stem.weight.requires_grad is stem and model.head.weight.requires_grad


def test_shapes_alike_share_a_formula():
    for length in (64, 320):
        predicted(f"{OWN}:train", sequence_length=length, per_device_train_batch_size=3)
    assert len([*(storage.cache_directory() / "formulas").iterdir()]) == 1


def test_a_loop_over_samples_is_a_regime_of_its_own():
    assert regime(predicted(f"{OWN}:loops", sequence_length=64, per_device_train_batch_size=2))[0] == "=2"


def test_a_model_that_depends_on_the_length_is_traced_at_that_length():
    job = predicted(f"{OWN}:learned_places", sequence_length=50)
    assert regime(job)[2] == "=50"
    assert (50, WIDTH) in {tensor.shape for tensor in job.formula.facts.parameters}


def test_a_formula_of_other_shapes_is_not_used_where_the_batch_is_another(tmp_path):
    model = written(tmp_path, "def make(batch, sequence):\n    return Net(), "
                              "{'x': torch.ones(batch, min(sequence, 400), 8)}")
    assert [regime(predicted(model, sequence_length=length))[2] for length in (320, 480)] == ["whole", "=480"]


def test_another_source_is_another_formula(tmp_path):
    body = "def make(batch): return Net(), {'x': torch.ones(batch, 8)}"
    keys = []
    for text in (body, body + "  # changed"):
        workload = dispatch.resolve(Workload(model=written(tmp_path, text))).workload
        keys.append(formula_key(Request.of(workload, Shape(1, 0, 1)).on(gpu(DEFAULT))).filename())
    assert keys[0] != keys[1]


def test_without_torch_it_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="needs torch"):
        code_models.build(code_models.at_shape(models.find(f"{OWN}:pictures"), Shape(1, 0, 1)), "bf16")


def test_its_page_counts_a_shared_weight_once(capsys):
    assert main(["models", f"{OWN}:learned_places", "--sequence-length", "16", "--no-step", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"] == (VOCABULARY + 16) * WIDTH + (WIDTH + 1) * VOCABULARY


def test_a_kept_formula_answers_again(monkeypatch):
    first = predicted(f"{OWN}:pictures", per_device_train_batch_size=4)
    monkeypatch.setattr("predictor.formula.tracing.trace_formula", None)
    store._load.cache_clear()
    again = predicted(f"{OWN}:pictures", per_device_train_batch_size=4)
    assert again.run(None).peak == first.run(None).peak
