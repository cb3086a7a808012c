"""TRL, torchtune and Hugging Face's datasets in cells: models with some hundred weights, nothing is
downloaded. Each is skipped where it isn't installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from own_meshes import own_mesh

from monarch_nb.mesh import Mesh
from monarch_nb.spmd import setup_torch_elastic_env

DATASETS = """
import os
from datasets import Dataset
from datasets.distributed import split_dataset_by_node

SCALE = 3

def times(row):
    return {"y": row["x"] * SCALE}

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
whole = Dataset.from_dict({"x": list(range(8))})
part = split_dataset_by_node(whole, rank, world_size).map(times, num_proc=2)
found = part["y"][:], whole.shard(world_size, rank)["x"][:]
"""

TRL = """
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = {word: number for number, word in enumerate(["<pad>", "</s>", "a", "b", "c"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
arguments = SFTConfig(folder, max_steps=2, per_device_train_batch_size=1, report_to=[],
                      bf16=False, save_strategy="no", disable_tqdm=True, logging_strategy="no", max_length=8)
trainer = SFTTrainer(
    model, arguments, train_dataset=Dataset.from_dict({"text": ["a b c", "b c a", "c a b", "a a b"]}),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>"))
result = trainer.train()
weights = sum(p.detach().double().sum().item() for p in model.parameters())
found = trainer.args.world_size, result.global_step, weights
"""

TORCHTUNE = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchtune.models.llama2 import lora_llama2
from torchtune.modules.peft import get_adapter_params, set_trainable_params

if not dist.is_initialized():
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = lora_llama2(["q_proj", "v_proj"], vocab_size=8, num_layers=1, num_heads=1, num_kv_heads=1,
                    embed_dim=8, max_seq_len=8, lora_rank=2, lora_alpha=4)
adapters = get_adapter_params(model)
set_trainable_params(model, adapters)
trained = DistributedDataParallel(model)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
torch.manual_seed(dist.get_rank())
losses = []
for _ in range(2):
    tokens = torch.randint(0, 8, (1, 8))
    loss = torch.nn.functional.cross_entropy(trained(tokens)[0, :-1], tokens[0, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
found = len(adapters), sum(p.detach().double().sum().item() for p in adapters.values()), losses
"""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("finetuning", {"gpus": 2}, env={"OMP_NUM_THREADS": "1"}) as found:
        setup_torch_elastic_env(found)
        yield found


def test_datasets_are_split_and_mapped_by_a_function_of_a_cell(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets", reason="datasets isn't installed")
    mesh.run(DATASETS, quiet=True, timeout=100)
    assert list(mesh.pull("found").values()) == [
        ([0, 3, 6, 9], [0, 1, 2, 3]),
        ([12, 15, 18, 21], [4, 5, 6, 7]),
    ]


def test_torchtune_trains_adapters_that_are_the_same_on_all_ranks(mesh: Mesh) -> None:
    pytest.importorskip("torchtune", reason="torchtune can't be imported", exc_type=ImportError)
    mesh.run(TORCHTUNE, quiet=True, timeout=200)
    first, second = mesh.pull("found").values()
    assert first[:2] == second[:2] and first[0] == 4 and first[2] != second[2]


def test_trl_trains_on_all_ranks(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl isn't installed")
    mesh.run(
        "import torch.distributed as dist\nif dist.is_initialized(): dist.destroy_process_group()", quiet=True
    )
    # A new port: while a model of the other test lives, so does the store of its process group.
    setup_torch_elastic_env(mesh)
    mesh.push({"folder": str(tmp_path)})
    mesh.run(TRL, quiet=True, timeout=200)
    first, second = mesh.pull("found").values()
    assert first == second and first[:2] == (2, 2)
