"""True values of integer tensors on the emulated GPU: every expression has the CPU's result."""

import pytest

from tests.calibrate.emulator.test_emulator import needs_emulator, run_job

pytestmark = needs_emulator

#: Evaluated with `d` as the device; x: 0..11 in 3 x 4; t: small numbers with repeats; f: floats.
EXPRESSIONS = {
    "item": "x.sum().item()",
    "tolist": "(x * 2).tolist()",
    "host copy": "x.cpu()",
    "host copy as another type": "x.to('cpu', torch.float32)",
    "copy into host memory": "torch.empty(3, 4, dtype=torch.long).copy_(x)",
    "any and all": "[(x == 3).any().item(), (x < 12).all().item()]",
    "nonzero": "(x > 5).nonzero()",
    "where": "torch.where(x > 5)[1]",
    "nonzero of an expanded mask": "(x > 7).unsqueeze(-1).expand(3, 4, 5).nonzero()",
    "integers by a mask": "x[x > 5]",
    "floats by a mask": "f[x > 5].shape",
    "floats by an expanded mask": "f[(x[:, :1] > 3).expand(3, 4)].shape",
    "floats by two masks": "f[x[:, 0] > 3, x[0] > 1].shape",
    "floats by no mask at all": "f[x > 99].shape",
    "masked_select": "[torch.masked_select(x, x > 3), torch.masked_select(f, x[0] > 1).shape]",
    "masked_scatter": "x.masked_scatter(x > 7, torch.full((9,), -1, device=d))",
    "gradient of masked_scatter's source": "torch.ops.aten.masked_scatter_backward(x, x > 7, [2, 6])",
    "assignment by a mask": "x.index_put((x > 7,), torch.tensor(1, device=d))",
    "assignment in place": "assign(x.clone())",
    "writes through views": "views(x.clone())",
    "empty, then written": "torch.empty(4, dtype=torch.long, device=d).copy_(x[0])",
    "constant": "torch.tensor([[1, 2], [3, 4]], device=d)",
    "list index": "x[[0, 2]]",
    "as_tensor of numpy": "torch.as_tensor(__import__('numpy').arange(3), device=d)",
    "creation by shape of floats": "[torch.ones_like(f, dtype=torch.bool).sum(), f.new_full((2,), 3, dtype=torch.long)]",
    "repeat_interleave": "[torch.repeat_interleave(t), x[0].repeat_interleave(x[0])]",
    "unique": "list(torch.unique(t, return_inverse=True, return_counts=True))",
    "unique booleans": "torch.unique(t > 1)",
    "unique rows": "list(torch.unique(t.view(3, 2), dim=0, return_counts=True))",
    "unique_consecutive": "list(torch.unique_consecutive(t, return_counts=True))",
    "bincount": "torch.bincount(t)",
    "one_hot": "torch.nn.functional.one_hot(t)",
    "cumsum": "t.cumsum(0, dtype=torch.int32)",
    "sort": "list(t.sort(stable=True))",
    "isin": "torch.isin(t, torch.tensor([1, 2], device=d))",
    "equal": "torch.equal(t, t.clone())",
    "causal mask": "torch.ones(4, 4, dtype=torch.bool, device=d).tril()",
    "vmap": "torch.vmap(lambda row: row > row[0])(x)",
    "gather": "x.gather(1, (x % 4))",
    "cat and split": "list(torch.cat([t, t]).split([2, 10]))",
    "resized": "resized(t.clone())",
    "floats from the host, compared": "[(h == 0).sum(), (h.to(torch.bfloat16)[1:] > 1).nonzero()]",
    "floats from the host, read back": "h[:, 1].cpu()",
    "quotients of integers, compared": "(torch.arange(100, device=d).float() / 4 == 5).nonzero()",
    "floats from the host, by a mask": "h[(h == 0).any(-1)].shape",
}

SCRIPT = """
def assign(x):
    x[x > 5] = 7
    return x
def views(x):
    x.view(-1)[3] = 50
    x[1].add_(10)
    x.data[2, 0] = -1
    x.t()[0].mul_(2)
    return x
def resized(t):
    t.resize_(0)
    return t.resize_(2).fill_(3)
def plain(value):
    if isinstance(value, torch.Tensor):
        return [list(value.shape), value.cpu().tolist()]
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
def evaluate(expression, d):
    x = torch.arange(12, device=d).view(3, 4)
    t = torch.tensor([3, 1, 1, 2, 3, 3], device=d)
    f = torch.zeros(3, 4, device=d)
    h = torch.tensor([[0.0, 0.5], [1.5, 2.0]]).to(d)
    return plain(eval(expression))
answer({name: [evaluate(e, d) for d in ("cpu", "cuda")] for name, e in %r.items()})
"""


@pytest.fixture(scope="module")
def answers() -> dict:
    return run_job(SCRIPT % EXPRESSIONS)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_emulated_gpu_answers_as_the_cpu_does(answers, name):
    on_cpu, on_cuda = answers[name]
    assert on_cuda == on_cpu


READINGS = """
import ctypes, gc
from torch.utils.checkpoint import checkpoint
from calibrate.emulator.host_values import install
twins = install().twins
facts = {}

noise = torch.randn(100, device="cuda")
facts["unknown"] = [(noise > 0).sum().item(), list(noise[noise > 0].shape), noise.argmax().item()]
facts["unknown_unique"] = torch.unique(noise > 0).numel()
known = torch.arange(100, device="cuda")
known[:3] = (noise > 0).sum()
facts["spoilt"] = known.sum().item()
known.zero_().add_(1)
facts["known_again"] = known.sum().item()

pixels = torch.ones(20, 30).to("cuda")
weights = torch.nn.Linear(20, 30).to("cuda").weight
facts["written_floats"] = [(pixels == 1).sum().item(), (pixels.add_(torch.randn(30, device="cuda")) == 1).sum().item(), (weights != 0).sum().item()]

class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum()
    @staticmethod
    def backward(ctx, gradient):
        facts.setdefault("gradient", []).append(gradient.item())
        return gradient.expand(100)
x = torch.zeros(100, device="cuda", requires_grad=True)
Loss.apply(x).backward()
(Loss.apply(x) / 4).backward()

experts = torch.randn(2048, 8, device="cuda").topk(2).indices
counts = torch.bincount(experts.flatten(), minlength=8).tolist()
facts["experts"] = [min(counts) > 400, sum(counts)]

torch.manual_seed(1)
expected = torch.randint(0, 9, (4,)).tolist()
torch.manual_seed(1)
drawn = torch.randint(5, 9, (1000,), device="cuda")
facts["random"] = [drawn.min().item() >= 5, drawn.max().item() < 9, sorted(torch.randperm(4, device="cuda").tolist())]
facts["users_generator_untouched"] = torch.randint(0, 9, (4,)).tolist() == expected

del known, drawn
gc.collect()
facts["left"] = len(twins)

# 3 rows of 4 are selected: in forward, in recomputation and in backward
mask = torch.tensor([True, False, True, True], device="cuda")
sizes = []
def select(x):
    sizes.append(x[mask].shape[0])
    return x[mask] * 2
for reentrant in (False, True):
    x = torch.zeros(4, 2**20, device="cuda", requires_grad=True)
    result = checkpoint(select, x, use_reentrant=reentrant)
    result.sum().backward()
facts["recomputed"] = sizes
x = torch.zeros(4, 2**20, device="cuda", requires_grad=True)
y = x[mask]
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
y.sum().backward()
facts["backward_bytes"] = torch.cuda.max_memory_allocated() - before

emulator = ctypes.CDLL(None)
emulator.peakcast_blind_reads.restype = ctypes.c_ulong
before = emulator.peakcast_blind_reads()
weight = torch.zeros(100, 64, device="cuda", requires_grad=True)
ids = torch.arange(5000, device="cuda") % 100
torch.nn.functional.embedding(ids, weight).sum().backward()
ids.topk(3), ids.kthvalue(2), ids.scatter(0, ids, ids), ids.median(), torch.searchsorted(ids.sort()[0], ids)
facts["blind"] = emulator.peakcast_blind_reads() - before
answer(facts)
"""


@pytest.fixture(scope="module")
def facts() -> dict:
    return run_job(READINGS)


def test_what_follows_from_floats_reads_back_as_zero(facts):
    assert facts["unknown"] == [0, [0], 0]


def test_one_unknown_element_makes_a_tensor_unknown_until_it_is_overwritten(facts):
    assert (facts["spoilt"], facts["known_again"]) == (0, 100)


def test_many_floats_are_known_only_as_they_come_from_the_host(facts):
    """All 600 ones before an update by what is unknown, none after it; weights are never kept."""
    assert facts["written_floats"] == [600, 0, 0]


def test_a_few_floats_are_computed(facts):
    """Fused losses look whether their gradient is 1; here it is, then 1/4."""
    assert facts["gradient"] == [1.0, 0.25]


def test_the_best_of_unknown_scores_are_chosen_evenly(facts):
    assert facts["experts"] == [True, 4096]


def test_random_integers_are_in_their_range(facts):
    assert facts["random"] == [True, True, [0, 1, 2, 3]]


def test_the_users_generator_is_not_advanced(facts):
    assert facts["users_generator_untouched"]


def test_twins_die_with_their_tensors(facts):
    assert facts["left"] <= 2  # what the last lines left in variables


def test_sizes_are_true_inside_recomputation(facts):
    assert facts["recomputed"] == [3, 3, 3, 3]


def test_backward_of_a_selection_holds_the_gradients_and_no_copy(facts):
    """Expanded gradient of the sum is a view; then 4 of 4 rows of zeros, filled in place."""
    assert facts["backward_bytes"] < 2 * 4 * 2**20 * 4


def test_common_operators_read_nothing_back_unanswered(facts):
    assert facts["blind"] == 0


LLAVA = """
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
vision = CLIPVisionConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                          image_size=28, patch_size=14)
text = LlamaConfig(hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, vocab_size=100)
config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=99, vision_feature_layer=-2)
with torch.device("meta"):
    model = LlavaForConditionalGeneration(config)
model.to_empty(device="cuda")
model.tie_weights()
ids = torch.randint(1, 90, (2, 20))
ids[:, 2:6] = 99  # 4 patches
masks = []
attention = torch.nn.functional.scaled_dot_product_attention
def spy(*args, attn_mask=None, **kwargs):
    masks.append(None if attn_mask is None else list(attn_mask.shape))
    return attention(*args, attn_mask=attn_mask, **kwargs)
torch.nn.functional.scaled_dot_product_attention = spy
def loss(ids, hidden=0):
    visible = torch.ones_like(ids)
    visible[:, ids.shape[1] - hidden :] = 0
    masks.clear()
    return model(input_ids=ids.cuda(), attention_mask=visible.cuda(), labels=ids.cuda(),
                 pixel_values=torch.zeros(2, 3, 28, 28, device="cuda")).loss
loss(ids).backward()
facts = {"mask": masks[-1]}
loss(ids, hidden=3).backward()
facts["padded_mask"] = masks[-1]
ids[0, 2] = 1  # one image token too few
try:
    loss(ids)
except ValueError as error:
    facts["mismatch"] = str(error)
answer(facts)
"""


@pytest.fixture(scope="module")
def llava() -> dict:
    pytest.importorskip("transformers")
    return run_job(LLAVA)


def test_a_model_that_checks_its_image_tokens_runs_unpatched(llava):
    assert llava["mask"] is None  # and sees that its attention mask hides nothing


def test_a_mask_that_hides_something_is_passed_on(llava):
    assert llava["padded_mask"] == [2, 1, 20, 20]


def test_a_wrong_number_of_image_tokens_is_still_an_error(llava):
    assert "match" in llava["mismatch"]


def test_inference_mode_keeps_values():
    facts = run_job("""
        with torch.inference_mode():
            made, moved = torch.arange(10, device="cuda"), torch.tensor([1, 2, 3]).cuda()
            answer({"made": [made[made > 5].numel(), (made > 5).sum().item(), made.tolist()],
                    "moved": [moved.tolist(), moved[moved > 1].numel(), moved.max().item()]})
    """)
    assert facts == {"made": [4, 4, list(range(10))], "moved": [[1, 2, 3], 2, 3]}
