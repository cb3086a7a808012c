"""What TorchTitan needs to train a small Llama without downloads: a text, a tokenizer of its words and a
config of the user's own.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

CONFIG = """
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

def small() -> Trainer.Config:
    config = llama3_debugmodel()
    del config.model_spec.model.layers[1:]
    config.hf_assets_path, config.dataloader.dataset_path = "tokenizer", "words"
    config.training.steps, config.training.seq_len, config.training.local_batch_size = 3, 32, 1
    config.training.mixed_precision_param = "float32"
    config.parallelism.spmd_backend = "partial_dtensor"
    config.metrics.disable_color_printing = True
    config.debug.seed = 1
    return config
"""
EXACT = """
import json, os, time
from pathlib import Path
from monarch_nb.spmd import titan
from torchtitan.components.metrics import MetricsProcessor

steps = []

class Recorder:
    def log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
        exact = [float(each).hex() for each in (global_avg_loss, global_max_loss, grad_norm)]
        steps.append([step, *exact, time.perf_counter(), time.process_time()])
        was(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)

was, MetricsProcessor.log = MetricsProcessor.log, Recorder.log
try:
    titan.main()
finally:
    MetricsProcessor.log = was
Path(os.environ["STEPS"] + os.environ["RANK"]).write_text(json.dumps(steps))
"""
"""Runs TorchTitan's trainer, and writes of each step: losses and norm to the last bit, and the clocks."""
HEALED = """
import os, signal
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.experiments.torchft.llama3.config_registry import llama3_torchft_debugmodel
from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer

def small() -> FaultTolerantTrainer.Config:
    config = llama3_torchft_debugmodel()
    del config.model_spec.model.layers[1:]
    config.hf_assets_path, config.dataloader.dataset_path = "tokenizer", "words"
    config.training.steps, config.training.seq_len, config.training.local_batch_size = 20, 32, 1
    config.training.mixed_precision_param = "float32"
    config.parallelism.spmd_backend = "partial_dtensor"
    config.metrics.disable_color_printing = True
    config.profiler.enable_profiling = False
    config.checkpoint.enable, config.checkpoint.interval = True, 1000
    config.fault_tolerance.semi_sync_method, config.fault_tolerance.sync_steps = "diloco", 4
    config.fault_tolerance.num_fragments, config.fault_tolerance.min_replica_size = 1, 2
    config.debug.seed = 1
    return config

class Recorder:
    def log(self, step, *args, **kwargs):
        was(self, step, *args, **kwargs)
        group = os.environ["REPLICA_GROUP_ID"]
        with open(f"steps-{group}-{os.getpid()}", "a") as file:
            file.write(f"{step}\\n")
        if group == "1" and step == 6 and os.path.exists("trap"):
            os.unlink("trap")
            os.kill(os.getpid(), signal.SIGKILL)

was, MetricsProcessor.log = MetricsProcessor.log, Recorder.log
"""
"""A config for replica groups: the first of group 1 dies at its sixth step, if there's a file `trap`."""
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "away"]


def write_titan_files(folder: Path) -> None:
    """Write `small_llama.py`, `healed_llama.py`, `exact.py`, `words` and `tokenizer` into a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    (folder / "small_llama.py").write_text(CONFIG)
    (folder / "healed_llama.py").write_text(HEALED)
    (folder / "exact.py").write_text(EXACT)
    chosen = random.Random(0)
    rows = [{"text": " ".join(chosen.choices(WORDS, k=50))} for _ in range(20)]
    for name in ("words", "tokenizer"):
        (folder / name).mkdir()
    (folder / "words" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = {word: number for number, word in enumerate(["<s>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
