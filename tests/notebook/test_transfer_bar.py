"""A transfer that takes long is shown in the cell that waits for it."""

from __future__ import annotations

import re

from kernels import Notebook

from monarch_nb._display.transfer_bar import TransferBar

SETUP = """
%load_ext monarch_nb
import torch
from monarch_nb.rdma import RDMABuffer, transfer
source, room = torch.ones(16 << 20), torch.zeros(16 << 20)
buffer = RDMABuffer(source)
"""


def test_a_long_transfer_has_a_bar() -> None:
    notebook = Notebook()
    notebook.run(SETUP)
    assert notebook.text("buffer.read_into(room).get() and None") == ""
    notebook.run("transfer.LONG_S = 0.0")
    text = notebook.text("buffer.read_into(room).get() and None")
    assert re.fullmatch(r"64 MiB of 64 MiB, [\d.]+ GB/s, .* s", text), text
    assert notebook.text("int(room.sum()) == room.numel()") == "True"
    notebook.close()


def test_what_the_bar_says() -> None:
    class HalfDoneTransfer:
        num_bytes = 2 << 30
        done_bytes = 1 << 30

        def done(self) -> bool:
            return False

    bar = TransferBar(HalfDoneTransfer(), 0.0)
    assert re.fullmatch(r"1 GiB of 2 GiB, [\d.]+ GB/s, .* left", bar.text()), bar.text()
    assert "<progress max='2147483648' value='1073741824'>" in bar.mimebundle()["text/html"]
