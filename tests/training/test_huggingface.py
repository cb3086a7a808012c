"""accelerate and transformers in cells and scripts: a tiny model, nothing is downloaded. Skipped where they
aren't installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from own_meshes import own_mesh

import monarch_nb
from monarch_nb.mesh import CellError, Mesh
from monarch_nb.spmd import setup_torch_elastic_env

pytest.importorskip("accelerate", reason="accelerate isn't installed")

ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator({given})
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.arange(32.0).view(8, 4) / 32, batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
num_batches = 0
for batch in data:
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    num_batches += 1
weight = accelerator.gather(next(model.parameters()).detach()).sum(1)
found = accelerator.num_processes, accelerator.process_index, num_batches, len(set(weight.tolist()))
print("trained", found[0], *found[2:])
"""

TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return {"input_ids": torch.full((4,), i), "labels": torch.tensor(i % 2)}

torch.manual_seed(0)
config = BertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                    intermediate_size=8, max_position_embeddings=8)
arguments = TrainingArguments(folder, num_train_epochs=1, per_device_train_batch_size=2, report_to=[],
                              save_strategy="no", disable_tqdm=True, logging_strategy="no")
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Words())
result = trainer.train()
found = trainer.args.world_size, result.global_step
"""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("huggingface", {"gpus": 2}) as found:
        setup_torch_elastic_env(found)
        yield found


@pytest.mark.parametrize("given", ["", "cpu=True"])
def test_accelerate_in_cells(mesh: Mesh, given: str) -> None:
    """On CPUs `Accelerator()` alone would take each rank for the only one."""
    mesh.run(ACCELERATE.format(given=given), quiet=True, timeout=100)
    assert list(mesh.pull("found").values()) == [(2, 0, 2, 1), (2, 1, 2, 1)]


def test_transformers_trainer_in_cells(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers isn't installed")
    mesh.push({"folder": str(tmp_path)})
    mesh.run(TRAINER, quiet=True, timeout=150)
    assert set(mesh.pull("found").values()) == {(2, 2)}


def test_accelerate_in_a_script(mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(ACCELERATE.format(given=""))
    for _ in range(2):
        mesh.run_script(tmp_path / "train.py", timeout=100)
    assert capsys.readouterr().out.count("[0-1] trained 2 2 1") == 2


SIZES = {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}


def gpt(transformers: Any) -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **SIZES, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    ))  # fmt: skip


def t5(transformers: Any) -> Any:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        **SIZES, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0,
        decoder_start_token_id=0,
    ))  # fmt: skip


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
@pytest.mark.parametrize("make", [gpt, t5], ids=lambda each: each.__name__)
def test_models_of_transformers_train_over_a_mesh(mesh: Mesh, make: Any, strategy: str) -> None:
    """Each computes its own loss; the second half of the batch, a rank's part, is nearly all padding."""
    transformers = pytest.importorskip("transformers", reason="transformers isn't installed")
    torch.manual_seed(0)
    plain = make(transformers).train()
    model = monarch_nb.parallelize(plain, mesh, strategy)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain)]
    for _ in range(3):
        tokens = torch.randint(3, 32, (8, 6))
        mask = torch.ones_like(tokens)
        mask[4:, 1:] = 0
        given = {"input_ids": tokens, "attention_mask": mask, "labels": tokens.where(mask.bool(), -100)}
        losses = [each(**given).loss for each in (model, plain)]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-5)
    found = monarch_nb.explain(model)
    assert not found.slow and found.dry is not None and not found.dry.findings


@pytest.mark.parametrize("way", ["auto", "fsdp", "module_to_mesh"])
@pytest.mark.parametrize("make", [gpt, t5], ids=lambda each: each.__name__)
def test_models_of_transformers_generate(mesh: Mesh, make: Any, way: str) -> None:
    """A cache of keys and values goes from one forward to the next."""
    transformers = pytest.importorskip("transformers", reason="transformers isn't installed")
    torch.manual_seed(0)
    plain = make(transformers).eval()
    to_mesh = way == "module_to_mesh"
    model = monarch_nb.module_to_mesh(plain, mesh) if to_mesh else monarch_nb.parallelize(plain, mesh, way)
    tokens = torch.randint(3, 32, (4, 3))
    for given in ({"num_beams": 1}, {"num_beams": 2}, {"use_cache": False}):
        given = {"max_new_tokens": 3, "do_sample": False, "attention_mask": torch.ones_like(tokens), **given}
        assert torch.equal(model.generate(tokens, **given).full(), plain.generate(tokens, **given))
    ours, theirs = (each(input_ids=tokens, labels=tokens) for each in (model, plain))
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), abs=1e-5)
    if make is gpt:
        kept = [each.past_key_values.layers[0].keys for each in (ours, theirs)]
        assert torch.allclose(kept[0].full(), kept[1], atol=1e-5)


@pytest.mark.parametrize("launcher", ["notebook_launcher", "debug_launcher"])
def test_launchers_of_processes_say_what_to_type(mesh: Mesh, launcher: str) -> None:
    with pytest.raises(CellError, match=r"ranks 0-1: .*in a cell of the mesh, type train\(1, 'a'\)"):
        mesh.run(
            "import accelerate\ndef train(lr, name):\n    return lr\n"
            f"accelerate.{launcher}(train, (1, 'a'), 2)",
            quiet=True,
        )
    mesh.run("found = train(1, 'a')", quiet=True)
    assert set(mesh.pull("found").values()) == {1}


LAUNCHED = """
import functools
import accelerate

class Trainer:
    def fit(self, lr=0.1):
        return lr

trainer, model = Trainer(), torch.nn.Linear(1, 1)
step = lambda lr: lr
"""


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("lambda lr: lr, (1,)", "type (...)(1) with your lambda in place of the dots"),
        ("step, (1,)", "type step(1)"),
        ("functools.partial(train, 1), ('a',)", "type train(1, 'a')"),
        ("functools.partial(train, name='b', lr=2)", "type train(name='b', lr=2)"),
        (
            "functools.partial(functools.partial(lambda x, lr: lr, 3), lr=2)",
            "type (...)(3, lr=2) with your lambda in",
        ),
        ("trainer.fit, (0.2,)", "type trainer.fit(0.2)"),
        ("Trainer().fit", "type (...)() with your function in place of the dots"),
        ("function=train, args=(model, 'a')", "type train(model, 'a')"),
        ("train, (torch.zeros(1000, 1000), [*range(1000)])", "type train(tensor("),
    ],
)
def test_a_launcher_says_what_to_type_for_whatever_it_was_given(mesh: Mesh, given: str, advice: str) -> None:
    mesh.run(LAUNCHED, quiet=True)
    mesh.run("def train(lr, name):\n    return lr", quiet=True)
    with pytest.raises(CellError) as raised:
        mesh.run(f"accelerate.notebook_launcher({given})", quiet=True)
    said = str(raised.value)
    assert f"in a cell of the mesh, {advice}" in said and len(said) < 1500, said


def test_what_cells_had_is_as_before(mesh: Mesh) -> None:
    mesh.run("found = accelerator.num_processes, accelerator.gather(torch.ones(1)).tolist()", quiet=True)
    assert set(map(str, mesh.pull("found").values())) == {"(2, [1.0, 1.0])"}
