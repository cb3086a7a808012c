"""A user's terminal and notebooks on a machine with files of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from waiting import wait_until

T = 120


class Terminal:
    """A terminal of a machine whose meshes, requests and profiles are others than this one's.

    Args:
        folder: of its files.
        variables: of its environment, besides this process's.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        (folder / "monarch_nb").mkdir()
        self.profile = folder / "monarch_nb" / "clusters.toml"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SLURM")},
            "XDG_CONFIG_HOME": str(folder),
            "JUPYTER_RUNTIME_DIR": f"{folder}/run",
            "JUPYTER_DATA_DIR": f"{folder}/data",
            **variables,
        }

    def write_profiles(self, text: str) -> None:
        self.profile.write_text(text)
        self.profile.chmod(0o600)

    def begin(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "monarch_nb", *command],
            env=self.environment | variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def types(self, *command: str, fails: bool = False) -> str:
        process = self.begin(*command)
        out, err = process.communicate(timeout=T)
        assert bool(process.returncode) == fails, f"{out}\n{err}"
        return err if fails else out

    def interrupts_in_queue(self, start: subprocess.Popen[str], why: str) -> str:
        """Press Ctrl-C when `queue` says why a request waits; return what is said then.

        Args:
            why: a regular expression.
        """

        def is_queued() -> bool:
            said = self.types("queue")
            assert start.poll() is None, f"{said}\n{start.communicate()}"
            return re.search(why, said) is not None

        wait_until(is_queued, "a request in the queue", T)
        start.send_signal(signal.SIGINT)
        return start.communicate(timeout=T)[1]

    def notebook(self, *cells: str) -> str:
        """Run a notebook as a user does that comes back later; return what its cells have printed."""
        path = self.folder / "run.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells]), path)
        with pytest.MonkeyPatch.context() as patch:
            for key, value in self.environment.items():
                patch.setenv(key, value)
            ran = NotebookClient(nbformat.read(path, 4), timeout=T).execute()
        return "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "")
            for cell in ran.cells
            for output in cell.outputs
        )
