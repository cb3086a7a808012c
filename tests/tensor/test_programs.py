"""Training programs as people write them: what they print over a mesh is what they print on one process."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError

Wrap = Callable[[nn.Module], nn.Module]
Program = Callable[[Wrap], list[float]]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def perceptron(*widths: int, layer: type[nn.Module] = nn.Tanh) -> nn.Module:
    first, second, last = widths
    return nn.Sequential(nn.Linear(first, second), layer(), nn.Linear(second, last))


def step(optimizer: Any, loss: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def labels(num: int) -> torch.Tensor:
    return torch.randint(num, (8,))


@program
def accumulated_gradients(wrap: Wrap) -> list[float]:
    model = wrap(perceptron(6, 8, 3, layer=nn.ReLU))
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    printed = []
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(3):
            loss = functional.cross_entropy(model(torch.randn(8, 6)), labels(3)) / 3
            loss.backward()
            printed.append(loss.item())
        printed.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        schedule.step()
    return printed


@program
def epochs_with_a_short_last_batch(wrap: Wrap) -> list[float]:
    model = wrap(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    data = TensorDataset(torch.randn(21, 6), torch.randint(3, (21,)))
    printed = [
        step(optimizer, functional.cross_entropy(model(x), y))
        for _ in range(2)
        for x, y in DataLoader(data, batch_size=8)
    ]
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=8)]
    return [*printed, *right]


@program
def moving_averages(wrap: Wrap) -> list[float]:
    model = wrap(perceptron(6, 8, 3))
    optimizer = optim.Adam(model.parameters(), 1e-2)
    averages = [each.detach().clone() for each in model.parameters()]
    printed = []
    for _ in range(3):
        printed.append(step(optimizer, functional.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3))))
        with torch.no_grad():
            for average, each in zip(averages, model.parameters(), strict=True):
                average.mul_(0.9).add_(each, alpha=0.1)
            torch._foreach_lerp_(averages, list(model.parameters()), 0.5)
    return [*printed, *(each.sum().item() for each in averages)]


@program
def saved_and_loaded(wrap: Wrap) -> list[float]:
    model = wrap(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    optimizer = optim.AdamW(model.parameters(), 1e-2)

    def train(num: int) -> list[float]:
        return [
            step(optimizer, functional.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3)))
            for _ in range(num)
        ]

    printed = train(2)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    in_memory = copy.deepcopy(optimizer.state_dict())
    printed += train(1)
    file.seek(0)
    found = torch.load(file)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    printed += train(2)
    optimizer.load_state_dict(in_memory)
    return [*printed, *train(2)]


@program
def variational(wrap: Wrap) -> list[float]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

        def forward(self, x: torch.Tensor, noise: torch.Tensor) -> Any:
            mean, log_var = self.encode(x).chunk(2, -1)
            return self.decode(mean + noise * (log_var / 2).exp()), mean, log_var

    model = wrap(Model())
    optimizer = optim.Adam(model.parameters(), 1e-2)
    printed = []
    for _ in range(3):
        x = torch.randn(8, 6)
        y, mean, log_var = model(x, torch.randn(8, 4))
        divergence = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()
        printed.append(step(optimizer, functional.mse_loss(y, x, reduction="sum") / len(x) + divergence))
    return printed


@program
def contrasts(wrap: Wrap) -> list[float]:
    """The module is called twice before the backward, and rows are compared with each other."""
    model = wrap(perceptron(6, 8, 4))
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    printed = []
    for _ in range(3):
        one, other = (functional.normalize(model(torch.randn(8, 6)), dim=-1) for _ in range(2))
        scores = one @ other.T * 10
        losses = [functional.cross_entropy(each, torch.arange(8)) for each in (scores, scores.T)]
        printed.append(step(optimizer, sum(losses) / 2))
    return printed


@program
def policy_gradient(wrap: Wrap) -> list[float]:
    model = wrap(perceptron(6, 8, 3))
    optimizer = optim.Adam(model.parameters(), 1e-2)
    printed = []
    for _ in range(3):
        log_p = model(torch.randn(8, 6)).log_softmax(-1)
        chosen = log_p.gather(1, labels(3)[:, None]).squeeze(1)
        ratio, advantage = (chosen - chosen.detach()).exp(), torch.randn(8)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        printed.append(step(optimizer, -gain - 0.01 * entropy))
    return printed


@program
def two_players(wrap: Wrap) -> list[float]:
    maker, judge = wrap(perceptron(4, 8, 6, layer=nn.ReLU)), wrap(perceptron(6, 8, 1, layer=nn.LeakyReLU))
    makers, judges = (optim.Adam(each.parameters(), 1e-2) for each in (maker, judge))
    printed = []
    for _ in range(3):
        made = maker(torch.randn(8, 4))
        real = functional.softplus(-judge(torch.randn(8, 6))).mean()
        printed.append(step(judges, real + functional.softplus(judge(made.detach())).mean()))
        printed.append(step(makers, functional.softplus(-judge(made)).mean()))
    return printed


@program
def images_to_images(wrap: Wrap) -> list[float]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.down = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
            self.norm, self.up, self.out = (
                nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 1, 1)
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> Any:
            x = functional.relu(self.first(x))
            small = functional.silu(self.norm(self.down(x)))
            large = functional.interpolate(small[:, :4], scale_factor=2, mode="bilinear")
            return self.out(torch.cat([x, self.up(small) + large], 1))

    model = wrap(Model())
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    return [
        step(optimizer, functional.l1_loss(model(torch.randn(8, 2, 8, 8)), torch.randn(8, 1, 8, 8)))
        for _ in range(3)
    ]


@program
def padded_sentences(wrap: Wrap) -> list[float]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 8, padding_idx=0)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.encoder, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> Any:
            padding = x == 0
            rows = self.encoder(self.embed(x), src_key_padding_mask=padding)
            rows = rows.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True)
            return self.out(rows)

    model = wrap(Model())
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    printed = []
    for _ in range(3):
        x = torch.randint(1, 20, (8, 6))
        x[2:5, 4:] = 0
        loss = functional.cross_entropy(model(x), labels(3), label_smoothing=0.1)
        printed.append(step(optimizer, loss))
    return printed


@program
def layers_that_thaw(wrap: Wrap) -> list[float]:
    model = perceptron(6, 8, 3)
    for each in model.get_submodule("0").parameters():
        each.requires_grad_(False)
    model = wrap(model)
    first = [each for name, each in model.named_parameters() if name.startswith("0.")]
    optimizer = optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-2)

    def train(num: int) -> list[float]:
        return [
            step(optimizer, functional.huber_loss(model(torch.randn(8, 6)), torch.randn(8, 3)))
            for _ in range(num)
        ]

    printed = train(2)
    for each in first:
        each.requires_grad_(True)
    optimizer.add_param_group({"params": first, "lr": 0.1})
    printed += train(3)
    for each in model.get_submodule("2").parameters():
        each.requires_grad_(False)
    return [*printed, *train(2)]


@program
def teacher_and_student(wrap: Wrap) -> list[float]:
    teacher, student = wrap(perceptron(6, 8, 3)), wrap(nn.Linear(6, 3))
    teacher.eval()
    optimizer = optim.SGD(student.parameters(), 0.1)
    printed = []
    for _ in range(3):
        x = torch.randn(8, 6)
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(-1)
        found = (student(x) / 2).log_softmax(-1)
        printed.append(step(optimizer, functional.kl_div(found, wanted, reduction="batchmean") * 4))
    return printed


@program
def triplets(wrap: Wrap) -> list[float]:
    model = wrap(perceptron(6, 8, 4, layer=nn.PReLU))
    optimizer = optim.Adagrad(model.parameters(), 1e-2)
    printed = []
    for _ in range(3):
        one, same, other = (model(torch.randn(8, 6)) for _ in range(3))
        loss = functional.triplet_margin_loss(one, same, other)
        loss = loss + functional.cosine_embedding_loss(one, same, torch.ones(8))
        loss = loss + functional.margin_ranking_loss(one.sum(1), other.sum(1), torch.ones(8))
        printed.append(step(optimizer, loss))
    return printed


@program
def speech(wrap: Wrap) -> list[float]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(6, 4, 2, batch_first=True, bidirectional=True)
            self.out = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(self.rnn(x)[0]).log_softmax(-1)

    model = wrap(Model())
    optimizer = optim.RMSprop(model.parameters(), 1e-2)
    printed = []
    for _ in range(2):
        found = model(torch.randn(8, 10, 6)).transpose(0, 1)
        lengths = [torch.full((8,), num) for num in (10, 4)]
        printed.append(step(optimizer, functional.ctc_loss(found, torch.randint(1, 5, (8, 4)), *lengths)))
    return printed


@program
def closures(wrap: Wrap) -> list[float]:
    model = wrap(nn.Linear(6, 3))
    optimizer = optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    x, y = torch.randn(8, 6), torch.randn(8, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(2)]


@program
def parameters_by_hand(wrap: Wrap) -> list[float]:
    model = wrap(perceptron(6, 8, 3))
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(0.01) if each.ndim > 1 else each.zero_()
        model.get_parameter("0.weight").copy_(torch.linspace(0, 1, 48).reshape(8, 6))
        model.get_parameter("2.weight")[:, 0] = 0.5
    vector = nn.utils.parameters_to_vector(model.parameters())
    return [float(vector.numel()), vector.norm().item(), model(torch.ones(8, 6)).sum().item()]


@program
def learned_weights_of_losses(wrap: Wrap) -> list[float]:
    """The module returns a parameter among its results."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)
            self.weights = nn.Parameter(torch.tensor([0.1, 0.2]))

        def forward(self, x: torch.Tensor) -> Any:
            x = self.trunk(x).tanh()
            return self.one(x), self.two(x).squeeze(-1), self.weights

    model = wrap(Model())
    optimizer = optim.SGD(model.parameters(), 0.1)
    printed = []
    for _ in range(4):
        one, two, weights = model(torch.randn(8, 6))
        loss = functional.cross_entropy(one, labels(3)) * (-weights[0]).exp() + weights.sum()
        loss = loss + functional.mse_loss(two, torch.randn(8)) * (-weights[1]).exp()
        printed.append(step(optimizer, loss))
    return printed


@program
def generated_text(wrap: Wrap) -> list[float]:
    """A state is given back to the module that has returned it, whose batch is its second dimension."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)
            self.rnn = nn.GRU(8, 8, batch_first=True)

        def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> Any:
            rows, state = self.rnn(self.embed(x), state)
            return self.out(rows), state

    model = wrap(Model())
    optimizer = optim.Adam(model.parameters(), 1e-2)
    printed = []
    for _ in range(2):
        x = torch.randint(11, (8, 6))
        scores, _ = model(x[:, :-1])
        printed.append(step(optimizer, functional.cross_entropy(scores.transpose(1, 2), x[:, 1:])))
    model.eval()
    x, state = torch.zeros(8, 1, dtype=torch.long), None
    with torch.no_grad():
        for _ in range(3):
            scores, state = model(x, state)
            x = scores[:, -1:].argmax(-1)
            printed += [x.sum().item(), scores.sum().item()]
    return printed


@program
def experts_by_index(wrap: Wrap) -> list[float]:
    """Which rows an expert gets is known only when it runs."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.out = nn.Linear(6, 3), nn.Linear(6, 3)
            self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: torch.Tensor) -> Any:
            weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
            found = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, places = (chosen == number).nonzero(as_tuple=True)
                found = found.index_add(0, rows, expert(x[rows]) * weights[rows, places, None])
            return self.out(found)

    model = wrap(Model())
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    return [step(optimizer, functional.cross_entropy(model(torch.randn(8, 6)), labels(3))) for _ in range(2)]


@program
def batches_of_all_sizes(wrap: Wrap) -> list[float]:
    model = wrap(perceptron(6, 8, 3))
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    return [
        step(optimizer, functional.cross_entropy(model(torch.randn(num, 6)), torch.randint(3, (num,))))
        for num in (7, 3, 1, 8, 5)
    ]


@program
def parts_of_results(wrap: Wrap) -> list[float]:
    model = wrap(nn.Linear(6, 5))
    optimizer = optim.SGD(model.parameters(), 0.1)
    printed = []
    for _ in range(2):
        y = model(torch.randn(8, 6))
        above = torch.where(y > 0, y, torch.zeros(()))
        loss = above[:, 1:3].sum() - y[torch.arange(8), labels(5)].mean() + y[y > 0].mean()
        loss = loss + (y[::2] - y[1::2]).abs().mean() + y.topk(2).values.sum()
        printed.append(step(optimizer, loss + y.sort(descending=True).values[:, 0].mean()))
    return printed


@program
def target_network(wrap: Wrap) -> list[float]:
    """One module's parameters are changed by the other's, between forwards without a backward."""
    judge, target = (wrap(perceptron(4, 8, 2)) for _ in range(2))
    target.load_state_dict(judge.state_dict())
    optimizer = optim.SGD(judge.parameters(), 0.1)
    printed = []
    for number in range(4):
        state, then, action = torch.randn(8, 4), torch.randn(8, 4), torch.randint(2, (8, 1))
        with torch.no_grad():
            wanted = torch.randn(8) + 0.9 * target(then).max(1).values
        found = judge(state).gather(1, action).squeeze(1)
        printed.append(step(optimizer, functional.smooth_l1_loss(found, wanted)))
        if number == 1:
            target.load_state_dict(judge.state_dict())
        with torch.no_grad():
            for mine, its in zip(target.parameters(), judge.parameters(), strict=True):
                mine.lerp_(its, 0.25)
            printed.append(target(torch.ones(1, 4)).sum().item())
    return printed


@pytest.fixture(params=["module_to_mesh", "parallelize", "fsdp"])
def wrap(request: pytest.FixtureRequest, mesh: Mesh) -> Wrap:
    if request.param != "fsdp":
        make = getattr(monarch_nb, request.param)
        return lambda module: make(module, mesh)

    def sharded(module: nn.Module) -> nn.Module:
        norms = [name for name, each in module.named_modules() if isinstance(each, nn.BatchNorm1d)]
        return monarch_nb.parallelize(module, mesh, "fsdp", replicate=norms)

    return sharded


@pytest.mark.filterwarnings("ignore:.*can't be done on shards")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_prints_on_one_process(wrap: Wrap, name: str) -> None:
    torch.manual_seed(0)
    wanted = PROGRAMS[name](lambda module: module)
    torch.manual_seed(0)
    assert PROGRAMS[name](wrap) == pytest.approx(wanted, rel=2e-4, abs=2e-4)


def penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Go back through a backward, as for the gradient penalty of a Wasserstein GAN."""
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).square().mean()


def test_a_gradient_has_a_gradient(mesh: Mesh) -> None:
    torch.manual_seed(0)
    plain = perceptron(6, 8, 1)
    model = monarch_nb.module_to_mesh(plain, mesh)
    x = torch.randn(8, 6, requires_grad=True)
    found, wanted = penalty(model, x), penalty(plain, x)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-6)
    found.backward()
    wanted.backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        assert theirs.grad is None or torch.allclose(ours.grad.full(), theirs.grad, atol=1e-6)


def test_a_gradient_of_the_ranks_own_has_none(mesh: Mesh) -> None:
    model = monarch_nb.parallelize(perceptron(6, 8, 1), mesh)
    with pytest.raises(MeshUsageError, match=r"create_graph=True .*module_to_mesh\(module, mesh\)"):
        penalty(model, torch.randn(8, 6, requires_grad=True))
    assert model(torch.randn(8, 6)).sum().isfinite().item()
