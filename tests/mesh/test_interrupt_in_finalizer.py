"""An interrupt that comes while a finalizer runs is not lost: Python lets nothing out of one."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

from own_meshes import own_mesh
from processes import PATIENCE_S

from monarch_nb.mesh.cell_run import CellInterrupted

CELL = """
import time
class Slow:
    def __del__(self):
        with open({ready!r}, "w") as file:
            file.write("x")
        while True:
            pass
slow = Slow()
del slow
after = True
time.sleep(600)
"""


def test_it_is_raised_again_behind_the_finalizer(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    with own_mesh(f"final{uuid.uuid4().hex[:6]}", {"gpus": 1}) as mesh:
        run = mesh.submit(CELL.format(ready=str(ready)))
        opener = threading.Thread(target=ready.read_text, daemon=True)
        opener.start()
        opener.join(PATIENCE_S)
        assert not opener.is_alive()
        mesh.interrupt()
        error = run.wait().error()
        assert isinstance(error, CellInterrupted)
        assert "did not react" not in str(error)
        assert list(mesh.pull("after").values()) == [True]
