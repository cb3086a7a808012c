"""JupyterLab in a real browser: started here, driven through its own application object."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil
from waiting import wait_for_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
PATIENCE_MS = 180_000
"""So long things may take on a busy machine. With eight programs on two cores JupyterLab alone takes more
than a minute to start.
"""
_DIRECTORIES = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
)

_OPTIONS = {
    "lab": ["--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly"],
    "notebooks": [
        "--JupyterNotebookApp.expose_app_in_browser=True",
        "--LabServerApp.extension_manager=readonly",
    ],
}
_OPEN = """async (path) => {
  await jupyterapp.started; await jupyterapp.restored;
  const w = await jupyterapp.commands.execute('docmanager:open', {path, factory: 'Notebook'});
  await w.context.ready; await w.sessionContext.ready; await w.revealed;
  await w.sessionContext.session.kernel.info;
  jupyterapp.shell.activateById(w.id);  // a busy one has another widget, or none, as the current one
  while (jupyterapp.shell.currentWidget !== w) await new Promise(f => setTimeout(f, 50));
}"""
_READY = """async (path) => {
  await jupyterapp.started; await jupyterapp.restored;
  while (!jupyterapp.shell.currentWidget?.context) await new Promise(f => setTimeout(f, 50));
  const w = jupyterapp.shell.currentWidget;
  await w.context.ready; await w.sessionContext.ready; await w.revealed;
  await w.sessionContext.session.kernel.info;
}"""
_RUN = """async (n) => {
  const notebook = jupyterapp.shell.currentWidget.content;
  notebook.activeCellIndex = n; notebook.deselectAll();
  await jupyterapp.commands.execute('notebook:run-cell');
}"""
_OUTPUTS = """(n) => jupyterapp.shell.currentWidget.content.model.cells.get(n).outputs.toJSON()"""

_KERNEL = """() => {
  const kernel = jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
  return kernel ? `${kernel.status}, ${kernel.connectionStatus}` : 'none';
}"""


class Lab:
    """A server and the files it shows."""

    def __init__(
        self,
        root: Path,
        python: str = sys.executable,
        *,
        app: str = "lab",
        path: str | None = None,
        without: Sequence[str] = (),
    ) -> None:
        """Start a server; `without` names what of ours is switched off: "server", "labextension"."""
        self.root = root
        self.app = app
        environment = {
            **os.environ,
            "PATH": path or os.environ["PATH"],
            **{k: str(root / k.lower()) for k in _DIRECTORIES},
        }
        environment.pop("MONARCH_NB_LIVE", None)
        for key in _DIRECTORIES:
            os.makedirs(environment[key], exist_ok=True)
        quiet = Path(environment["JUPYTERLAB_SETTINGS_DIR"]) / "@jupyterlab" / "apputils-extension"
        quiet.mkdir(parents=True)
        (quiet / "notification.jupyterlab-settings").write_text(
            '{"fetchNews": "false", "checkForUpdates": false}'
        )
        _switch_off(Path(environment["JUPYTER_CONFIG_DIR"]), without)
        with open(root / "server.log", "w") as log:
            self._process = subprocess.Popen(
                [
                    python,
                    "-m",
                    "jupyterlab" if app == "lab" else "notebook",
                    "--no-browser",
                    "--allow-root",
                    "--ip=127.0.0.1",
                    "--ServerApp.port=0",
                    "--IdentityProvider.token=T",
                    f"--ServerApp.root_dir={root}",
                    *_OPTIONS[app],
                ],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.environment = environment
        port = wait_for_server(self._process, Path(environment["JUPYTER_RUNTIME_DIR"]), root / "server.log")
        self.url = f"http://127.0.0.1:{port}/{self.app}?token=T&reset"

    def close(self) -> None:
        """End the server, its kernels, and meshes that a test that failed has left."""
        kernels = (
            psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        )
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:  # Jupyter's own end is no subject here
            for process in kernels:
                with suppress(psutil.Error):
                    process.kill()
            self._process.kill()
            self._process.wait()
        for file in Path(self.environment["JUPYTER_RUNTIME_DIR"]).glob("monarch_nb-*.json"):
            with suppress(OSError):
                os.kill(json.loads(file.read_text())["pid"], signal.SIGTERM)


def _switch_off(config: Path, without: Sequence[str]) -> None:
    """Write what `jupyter server extension disable` and `jupyter labextension disable` write."""
    if "server" in without:
        (config / "jupyter_server_config.json").write_text(
            '{"ServerApp": {"jpserver_extensions": {"monarch_nb": false}}}'
        )
    if "labextension" in without:
        (config / "labconfig").mkdir()
        (config / "labconfig" / "page_config.json").write_text('{"disabledExtensions": {"monarch-nb": true}}')


@contextmanager
def opened(browser: Any, lab: Lab, cells: list[str], name: str) -> Iterator[Page]:
    """Open a notebook and run its first cell; at the end its last one. The page has had no errors then."""
    page = Page(browser, lab, cells, name)
    page.run(0)
    yield page
    page.run(len(cells) - 1)
    assert page.errors == []
    page.page.close()


class Page:
    """A notebook on the page."""

    def __init__(self, browser: Any, lab: Lab, cells: list[str], name: str) -> None:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, lab.root / name)
        self._root = lab.root
        self.page = browser.new_page(viewport={"width": 1000, "height": 1200})
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(error.stack or str(error)))
        self.page.on("request", self._on_request)
        self.page.set_default_timeout(PATIENCE_MS)
        # A server that is busy gives no style sheet in time, and Jupyter's dialog lies over the page.
        theme = self.page.get_by_role("dialog", name=re.compile("Error Loading Theme"))
        self.page.add_locator_handler(theme, lambda: theme.get_by_role("button").last.click())
        self.page.goto(lab.url.replace("/notebooks?", f"/notebooks/{name}?"))
        self.page.wait_for_function("window.jupyterapp && !document.querySelector('#jupyterlab-splash')")
        self.page.evaluate(_OPEN if lab.app == "lab" else _READY, name)

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
            self.strangers.append(request.url)

    def start(self, n: int) -> None:
        """Run a cell without waiting for its end."""
        self.page.evaluate(_RUN.replace("await jupyterapp.commands", "jupyterapp.commands"), n)

    def run(self, n: int) -> str:
        """Run a cell; return its text."""
        self.page.evaluate(_RUN, n)
        return self.text(n)

    def text(self, n: int) -> str:
        """Return what a cell shows as text."""
        parts = []
        for output in self.page.evaluate(_OUTPUTS, n):
            text = (
                output.get("text")
                or output.get("data", {}).get("text/plain")
                or output.get("traceback")
                or ""
            )
            parts.append(text if isinstance(text, str) else "\n".join(text))
        return "\n".join(p.rstrip("\n") for p in parts)

    def wait_for(self, n: int, text: str) -> None:
        """Wait until a cell's output shows a text, on the page; its source may have that, too. If it never
        does, say what is known about that.
        """
        try:
            cell = self.page.locator(".jp-Notebook .jp-Cell").nth(n)
            cell.locator(".jp-Cell-outputArea").get_by_text(text).first.wait_for()
        except Exception as error:
            kernel = self.page.evaluate(_KERNEL)
            log = "\n".join((self._root / "server.log").read_text().splitlines()[-40:])
            found = f"cell {n} shows {self.text(n)!r}, the kernel is {kernel}, errors {self.errors}"
            raise AssertionError(f"never: {text!r}: {found}; the server's log ends:\n{log}") from error

    def wait_until_ended(self, n: int) -> None:
        """Wait until a cell has ended: what is run while one fails, the kernel refuses."""
        cell = self.page.locator(".jp-Notebook .jp-Cell").nth(n)
        cell.locator(".jp-InputPrompt", has_text="*").wait_for(state="hidden")

    def execute(self, command: str) -> None:
        """Run a command of the application."""
        self.page.evaluate("(c) => { jupyterapp.commands.execute(c); }", command)

    def save(self) -> None:
        """Save the notebook."""
        self.page.evaluate("async () => { await jupyterapp.commands.execute('docmanager:save'); }")

    def use_theme(self, theme: str) -> None:
        """Change the theme, and wait until JupyterLab's splash screen has left: it leaves by a timer, and two
        changes within that time take it away twice, which is an error of JupyterLab's.
        """
        self.page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        self.page.wait_for_function(
            f"document.body.dataset.jpThemeName === '{theme}' && "
            "!document.querySelector('#jupyterlab-splash')"
        )

    def picture(self, path: Path) -> None:
        """Take a screenshot."""
        self.page.screenshot(path=str(path))
