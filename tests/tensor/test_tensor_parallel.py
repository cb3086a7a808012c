"""Layers that ranks share: the loop stays as it is, what comes out is that of one process, and a plan that
would compute something else is never taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import monarch_nb
from monarch_nb._parallel.tensor_plans import find_plan, head_counts, models_plan, prove_plan
from monarch_nb._parallel.tensor_proof import Proof, Prover, Unproven
from monarch_nb._rank.tensor.protocol import Divided
from monarch_nb._tensor.plans import checked_plan
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError, ShardingError
from tests.tensor.models import CASES, GPT, Batch, train


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


class Attention(nn.Module):
    """As people write it by hand: views depend on the number of heads."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            f(x).view(rows, length, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        weights = (q @ k.transpose(-2, -1) / self.head_dim**0.5).softmax(-1)
        found: torch.Tensor = self.o((weights @ v).transpose(1, 2).reshape(rows, length, -1))
        return found


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.attention, self.norm, self.other_norm = (
            Attention(width),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.gate, self.up, self.down = nn.Linear(width, 32), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        h = self.other_norm(x)
        found: torch.Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return found


class Llama(nn.Module):
    """Two blocks, and embeddings that are the head, too."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(18, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 18, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        found: torch.Tensor = self.head(h).flatten(0, 1)
        return found


def tokens() -> Batch:
    return torch.randint(17, (8, 6)), torch.randint(17, (48,))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


TIED = {
    "embed": "rowwise", "head": "colwise_gather_output", "blocks.*.gate": "colwise", "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
}  # fmt: skip
MODELS: dict[str, tuple[Any, Any, Any, Any]] = {
    "mlp": (perceptron, CASES["mlp"].batch, nn.MSELoss(), None),
    "gpt": (GPT, tokens, nn.CrossEntropyLoss(), None),
    "attention": (Llama, tokens, nn.CrossEntropyLoss(), None),
    "tied embeddings": (Llama, tokens, nn.CrossEntropyLoss(), TIED),
}


def assert_trains_as_one(mesh: Mesh, name: str, strategy: str, **more: Any) -> nn.Module:
    make, batch, criterion, plan = MODELS[name]
    plain = make()
    batches = [batch() for _ in range(6)]
    model: nn.Module = monarch_nb.parallelize(
        plain, mesh, strategy, sample=batches[0][0], tp_plan=plan, **more
    )
    assert train(model, batches, criterion) == pytest.approx(train(plain, batches, criterion), abs=1e-9)
    for (key, ours), theirs in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.allclose(ours.full(), theirs, atol=1e-6), key
    assert monarch_nb.explain(model).slow == ""
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", ["ddp+tp", "fsdp+tp"])
def test_steps_are_those_of_one_process(mesh: Mesh, name: str, strategy: str) -> None:
    model = assert_trains_as_one(mesh, name, strategy)
    split = [p for p in model.parameters() if p.placements[0].is_shard()]
    assert split and all(p.placements[1].is_shard() == (strategy == "fsdp+tp") for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_share_everything(own_mesh: Mesh, name: str) -> None:
    model = assert_trains_as_one(own_mesh, name, "tp")
    assert "asked  TP 2" in str(monarch_nb.explain(model))


@pytest.mark.parametrize("words", [{"checkpoint": True}, {"replicate": ["blocks.0"]}], ids=str)
@pytest.mark.parametrize("strategy", ["ddp+tp", "fsdp+tp"])
def test_with_checkpointing_and_layers_on_the_whole_batch(
    mesh: Mesh, strategy: str, words: dict[str, Any]
) -> None:
    assert_trains_as_one(mesh, "attention", strategy, **words)


@pytest.mark.parametrize("words", [{"precision": "bf16"}, {"compile": True}], ids=str)
@pytest.mark.parametrize("strategy", ["ddp+tp", "fsdp+tp"])
def test_ways_to_run(mesh: Mesh, strategy: str, words: dict[str, Any]) -> None:
    torch.set_default_dtype(torch.float32)
    make, batch, criterion, _ = MODELS["mlp"]
    plain, batches = make(), [batch() for _ in range(3)]
    model = monarch_nb.parallelize(plain, mesh, strategy, sample=batches[0][0], **words)
    tolerance = 0.05 if "precision" in words else 1e-5
    assert train(model, batches, criterion) == pytest.approx(train(plain, batches, criterion), abs=tolerance)


# --- which plans are right


def proof_of(module: nn.Module, plan: Mapping[str, str] | None, *args: Any, parts: int = 2) -> Proof:
    prover, rows = Prover(module, parts), args[0].shape[0]
    if plan is None:
        return find_plan(prover, args, {}, rows)
    return prove_plan(prover, checked_plan(module, plan), args, {}, rows)


def styles(proof: Proof) -> dict[str, str]:
    return {each.path: each.style for each in proof.plan.layers}


def test_what_is_found() -> None:
    found = proof_of(Llama(), None, torch.randint(17, (4, 6)))
    inside = dict.fromkeys(["attention.q", "attention.k", "attention.v", "gate", "up"], "colwise")
    inside |= dict.fromkeys(["attention.o", "down"], "rowwise")
    assert styles(found) == {f"blocks.{n}.{path}": style for n in (0, 1) for path, style in inside.items()}
    assert set(found.plan.divided) == {Divided(f"blocks.{n}.attention", "num_heads", 2) for n in (0, 1)}
    activation = 4 * 6 * 16 * 8  # each of two layers' results; of gradients those of each layer's input
    assert found.forward_bytes == 4 * activation and found.backward_bytes == 10 * activation
    fused = styles(proof_of(GPT(), None, torch.randint(17, (4, 6))))
    assert fused == {
        f"blocks.{n}.{path}": style
        for n in (0, 1)
        for path, style in (("up", "colwise"), ("down", "rowwise"))
    }


def test_heads_that_cant_be_divided_stay_whole() -> None:
    module = nn.Sequential(Attention(12, 3), nn.LayerNorm(12), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    assert styles(proof_of(module, None, torch.randn(4, 5, 12))) == {"2": "colwise", "4": "rowwise"}
    plan = {"0.q": "colwise", "0.k": "colwise", "0.v": "colwise", "0.o": "rowwise"}
    with pytest.raises(Unproven, match=r"0: its 3 heads \(num_heads\) can't be divided by 2 ranks"):
        proof_of(module, plan, torch.randn(4, 5, 12))
    assert head_counts(module[0]) == {"num_heads": 3}


class Body(nn.Module):
    """Two Linear layers with something between them."""

    def __init__(self, between: Any, width: int = 8) -> None:
        super().__init__()
        self.up, self.down, self.between = nn.Linear(6, width), nn.Linear(width, 6), between
        self.scale = nn.Parameter(torch.ones(()))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(self.between(self, self.up(x)))
        return found


def per_head(body: Any, h: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = body.norm(h.unflatten(-1, (-1, 4))).flatten(-2)
    return found


BETWEEN: dict[str, tuple[Any, str]] = {
    "sums over features": (lambda b, h: h - h.mean(-1, keepdim=True), "it sums over what is in parts"),
    "adds up features": (lambda b, h: h.cumsum(-1), "cumsum"),
    "orders features": (lambda b, h: h.sort(-1).values, "sort"),
    "turns features round": (lambda b, h: h.flip(-1), "flip"),
    "takes the first half twice": (lambda b, h: torch.cat([h[..., : h.shape[-1] // 2]] * 2, -1), "slice"),
    "counts features": (lambda b, h: h * h.shape[-1], "another number"),
    "normalises all features": (lambda b, h: functional.layer_norm(h, h.shape[-1:]), "layer_norm"),
    "has a parameter for all": (lambda b, h: h * b.scale, "a share of the gradient of scale only"),
    "has a norm for each head": (per_head, "a share of the gradient of norm.weight only"),
    "uses the weight": (lambda b, h: h + b.up.weight.sum(), "up.weight is used outside of its layer"),
    "repeats features": (lambda b, h: torch.cat([h, h], -1)[..., : b.down.in_features], "takes parts"),
    "knows the width": (lambda b, h: h.view(-1, 8), "down: 'rowwise' takes parts"),
    "branches on the width": (lambda b, h: h.relu() if h.shape[-1] == 8 else h, "other operations"),
}  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
def test_what_isnt_right_is_refused(name: str) -> None:
    between, message = BETWEEN[name]
    with pytest.raises(Unproven, match=message):
        proof_of(Body(between), {"up": "colwise", "down": "rowwise"}, torch.randn(4, 6))
    with pytest.raises(Unproven, match="no two layers are found"):
        proof_of(Body(between), None, torch.randn(4, 6))


def test_a_norm_for_each_head_is_right_if_its_gradient_is_summed(mesh: Mesh) -> None:
    plan = {"up": "colwise", "norm": "replicated_with_grad_allreduce", "down": "rowwise"}
    for strategy in ("ddp+tp", "fsdp+tp"):
        plain, x = Body(per_head), torch.randn(4, 6)
        model = monarch_nb.parallelize(plain, mesh, strategy, tp_plan=plan)
        for each in (model, plain):
            each(x).square().sum().backward()
        assert torch.allclose(model.norm.weight.grad.full(), plain.norm.weight.grad)
        assert model.scale.grad is None


def test_the_plan_of_a_model_of_transformers(mesh: Mesh) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, use_cache=False, tie_word_embeddings=True,
    )  # fmt: skip
    plain = transformers.Qwen3ForCausalLM(config)
    plan, reason = models_plan(plain)
    assert plan["model.layers.1.self_attn.q_proj"] == "colwise" and reason == ""
    assert plan["model.layers.1.self_attn.q_norm"] == "replicated_with_grad_allreduce"
    model = monarch_nb.parallelize(plain, mesh, "fsdp+tp")
    batches = [torch.randint(32, (4, 6)) for _ in range(3)]
    optimizers = [optim.AdamW(each.parameters(), lr=1e-3) for each in (model, plain)]
    for batch in batches:
        losses = []
        for each, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            logits = each(batch).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), batch.flatten())
            loss.backward()
            optimizer.step()
            losses.append(float(loss.item()))
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert monarch_nb.explain(model).slow == ""
    assert "the model's own" in str(monarch_nb.explain(model))


# --- what happens on ranks


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = perceptron(), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.drop(self.body(self.drop(x)))
        return found


def parts_of(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if hasattr(value, "to_local") else value  # type: ignore[no-any-return]


def test_ranks_that_share_layers_draw_the_same(mesh: Mesh) -> None:
    x = torch.ones(8, 6)
    model = monarch_nb.parallelize(Dropping(), mesh, "ddp+tp", sample=x)
    shown = []
    for _ in range(2):
        out = model(x)
        a, b, c, d = mesh.execute(lambda value: parts_of(value).tolist(), out.detach())
        assert a == b and c == d and a != c, "ranks 0 and 1 share layers, 2 and 3 have other rows"
        out.square().sum().backward()
        shown.append(a)
    assert shown[0] != shown[1]


def test_forwards_of_all_kinds(mesh: Mesh) -> None:
    plain, x = perceptron(), torch.randn(8, 6)
    model = monarch_nb.parallelize(plain, mesh, "ddp+tp", sample=x)
    with torch.no_grad():
        assert torch.allclose(model(x).full(), plain(x))
    for inputs in (x, torch.randn(5, 6)):  # five rows can't be split: operation by operation
        model.zero_grad()
        plain.zero_grad()
        given = [inputs.clone().requires_grad_() for _ in range(2)]
        for each, value in zip((model, plain), given, strict=True):
            each(value).square().sum().backward()
        assert torch.allclose(given[0].grad, given[1].grad)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(ours.grad.full(), theirs.grad)


def test_a_forward_that_the_plan_isnt_right_for_runs_operation_by_operation(mesh: Mesh) -> None:
    class Turning(nn.Sequential):
        turns = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self[1](self[0](x))
            found: torch.Tensor = self[2](h if self.training else h.flip(-1))
            return found

    plain, x = Turning(*perceptron()), torch.randn(8, 6)
    model = monarch_nb.parallelize(plain, mesh, "tp", sample=x)
    assert torch.allclose(model(x).full(), plain(x)) and monarch_nb.explain(model).slow == ""
    model.eval()
    plain.eval()
    assert torch.allclose(model(x).full(), plain(x))
    assert "isn't right for this forward" in str(monarch_nb.explain(model))


@pytest.mark.parametrize("axes", [("tp", "dp"), ("dp", "tp")])
def test_tensors_of_the_mesh_as_inputs(mesh: Mesh, axes: tuple[str, str]) -> None:
    ranks = Mesh((2, 2), axes, procs=mesh.procs)
    plain, x = perceptron(), torch.randn(8, 6)
    model = monarch_nb.parallelize(plain, ranks, "ddp+tp", sample=x)
    for spec in ([None, None], ["dp"], ["tp"], [("dp", "tp")]):
        assert torch.allclose(model(monarch_nb.distribute(x, ranks, spec)).full(), plain(x)), spec
    other = monarch_nb.parallelize(perceptron(), ranks, "ddp+tp", sample=x)
    widened = nn.functional.pad(other(x), (0, 3))
    model(widened.flip(0)).square().sum().backward()
    assert float(other[0].weight.grad.full().abs().sum()) > 0


def test_fed_batches_lie_as_the_module_wants_them(mesh: Mesh) -> None:
    plain, batches = perceptron(), [CASES["mlp"].batch() for _ in range(2)]
    model = monarch_nb.parallelize(plain, mesh, "ddp+tp", sample=batches[0][0])
    losses = []
    for inputs, targets in monarch_nb.feed(batches, model):
        assert [p.is_shard() for p in inputs.placements] == [False, True]
        losses.append(functional.mse_loss(model(inputs), targets).item())
    assert losses == pytest.approx([functional.mse_loss(plain(x), y).item() for x, y in batches])


# --- the choice, and what is said of it


def test_auto_takes_it_where_it_is_faster(mesh: Mesh) -> None:
    wide = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
    model = monarch_nb.parallelize(wide, mesh, sample=torch.randn(4, 512), memory=8 << 30)
    found = monarch_nb.explain(model)
    assert found.taken.num_parts == 2 and "taken  TP 2 x DDP 2" in str(found)
    assert "not    DDP" in str(found) and "slower" in str(found)
    assert "split  0" in str(found) and "colwise over 2 ranks (found)" in str(found)
    x = torch.randn(4, 512)
    assert torch.allclose(model(x).full(), wide(x))
    small = monarch_nb.parallelize(GPT(), mesh, sample=tokens()[0], memory=8 << 30)
    assert monarch_nb.explain(small).taken.name == "DDP"
    assert "not    TP 2 x FSDP2 2" in str(monarch_nb.explain(small))


def test_auto_says_why_there_is_no_plan(mesh: Mesh) -> None:
    text = str(monarch_nb.explain(monarch_nb.parallelize(nn.Linear(3, 2), mesh)))
    assert "not    TP 2" in text and "parallelize(..., sample=batch)" in text
    text = str(monarch_nb.explain(monarch_nb.parallelize(nn.Linear(3, 2), mesh, sample=torch.randn(8, 3))))
    assert "not    TP 2" in text and "no two layers are found" in text
    text = str(monarch_nb.explain(monarch_nb.parallelize(perceptron(), mesh, "fsdp")))
    assert "TP" not in text


def test_the_plan_is_shown(mesh: Mesh) -> None:
    model = monarch_nb.parallelize(Llama(), mesh, "ddp+tp", sample=tokens()[0])
    rows = monarch_nb.explain(model).rows()
    assert rows[0][:2] == ("asked", "TP 2 x DDP 2")
    assert ("split", "blocks.*.attention.o, blocks.*.down", "rowwise over 2 ranks (found)") in rows
    assert ("split", "blocks.*.attention", "num_heads=2 on each rank") in rows


def test_what_is_typed_wrongly(mesh: Mesh, own_mesh: Mesh) -> None:
    plain, x = Llama(), tokens()[0]
    for words, message in (
        ({"tp_plan": {"blocks.*.dwn": "rowwise"}}, r"no layer 'blocks.\*.dwn'; did you mean 'blocks"),
        ({"tp_plan": {"blocks.*.up": "columns"}}, "'colwise', .*; not 'columns'"),
        ({"tp_plan": {"blocks.*.up": "rowise"}}, "did you mean 'rowwise'"),
        ({"tp_plan": {"blocks.*.norm": "colwise"}}, "blocks.0.norm is a LayerNorm; 'colwise' and 'rowwise'"),
        ({"tp_plan": {}}, r'tp_plan says how layers are split, as in {"up": "colwise"}; not {}'),
        ({"tp_plan": ["blocks.0.up"]}, "tp_plan says how layers are split"),
        ({"tp_plan": {"head": "colwise"}, "strategy": "fsdp"}, "tp_plan is for strategy='auto' or 'tp'; not"),
        ({"strategy": "tp"}, r"'tp' finds layers .* parallelize\(..., sample=batch\); or .*tp_plan="),
    ):  # fmt: skip
        with pytest.raises(MeshUsageError, match=message):
            monarch_nb.parallelize(plain, mesh, **words)
    with pytest.raises(
        MeshUsageError, match=r"'fsdp\+tp' splits the batch over a second axis .* strategy='tp'"
    ):
        monarch_nb.parallelize(plain, own_mesh, "fsdp+tp", sample=x)


def test_a_plan_that_cant_be_taken(mesh: Mesh) -> None:
    x = torch.randn(8, 6)
    with pytest.raises(
        ShardingError, match=r"0.weight has 9 of what is split, and 2 ranks can't share that evenly"
    ):
        monarch_nb.parallelize(CASES["mlp"].make(), mesh, tp_plan={"0": "colwise", "2": "rowwise"})
    with pytest.raises(
        ShardingError,
        match=r"no layers of this module can be shared by 2 ranks: .*its Linear layers are 0, 2; .*'fsdp'",
    ):
        monarch_nb.parallelize(CASES["mlp"].make(), mesh, "tp", sample=x)
    with pytest.raises(
        ShardingError, match=r"\(tp_plan\) doesn't give what one process computes on 2 ranks: 2: .*has 8"
    ):
        monarch_nb.parallelize(perceptron(), mesh, "tp", sample=x, tp_plan={"2": "rowwise"})
    late = monarch_nb.parallelize(perceptron(), mesh, tp_plan={"0": "colwise"})
    with pytest.raises(ShardingError, match=r"\(tp_plan\) doesn't give what one process computes"):
        late(x)
    with pytest.raises(ShardingError, match=r"a batch of 5 rows can't be split over 2 ranks"):
        monarch_nb.parallelize(perceptron(), mesh, "tp", sample=torch.randn(5, 6))


@pytest.mark.parametrize("on", ["two axes", "one axis"])
def test_operation_by_operation(mesh: Mesh, own_mesh: Mesh, on: str) -> None:
    make, batch, criterion, plan = MODELS["tied embeddings"]
    plain, batches = make(), [batch() for _ in range(2)]
    more = {"blocks.*.attention.q": "colwise", "blocks.*.attention.o": "rowwise"}
    at = mesh if on == "two axes" else own_mesh
    model = monarch_nb.module_to_mesh(plain, at, strategy="tp", tp_plan={**plan, **more})
    assert model.blocks[0].down.weight.placements[-1].dim == 1
    assert model.blocks[0].down.bias.placements[-1].is_replicate()
    assert train(model, batches, criterion) == pytest.approx(train(plain, batches, criterion), abs=1e-9)


def test_operation_by_operation_wants_a_plan(mesh: Mesh) -> None:
    for words in ({"strategy": "tp"}, {"tp_plan": {"0": "colwise"}}):
        with pytest.raises(MeshUsageError, match=r"belong together; .*finds a plan"):
            monarch_nb.module_to_mesh(perceptron(), mesh, **words)
    with pytest.raises(MeshUsageError, match="no layer '7'"):
        monarch_nb.module_to_mesh(perceptron(), mesh, strategy="tp", tp_plan={"7": "colwise"})
