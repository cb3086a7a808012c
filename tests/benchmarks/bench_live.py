"""Live state, from a rank to the eye: `python tests/benchmarks/bench_live.py`. Needs JupyterLab, playwright
and chromium.

Prints: how long a change of state takes from the rank to the page (DOM); frames while 256 ranks change five
times a second, in the card; what watching costs a host process, and what the server extension costs when
nobody looks.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "lab"))

from lab import CHROMIUM, Lab, Page
from playwright.sync_api import sync_playwright

NUM_CHANGES = 60
_OBSERVE = """() => {
  window.mnbSeen = [];
  const look = (records) => records.forEach(r => {
    const now = performance.timeOrigin + performance.now();
    const busy = r.target.classList.contains('mnb-busy');
    if (r.target.dataset.rank === '3') window.mnbSeen.push([now / 1000, busy]);
  });
  const grid = document.querySelector('#monarch-nb-panel .mnb-grid-place');
  new MutationObserver(look).observe(grid, {subtree: true, attributes: true, attributeFilter: ['class']});
}"""
_FRAMES = """async ({script, status, seconds, rate}) => {
  const url = URL.createObjectURL(new Blob([script], {type: 'text/javascript'}));
  const widget = (await import(url)).default;
  const listeners = {}, state = {snapshot: status, delta: {}, ended: ''};
  const on_event = (event, listener) => { listeners[event] = listener; };
  const nothing = () => {};
  const model = {get: k => state[k], on: on_event, off: nothing, send: nothing, save_changes: nothing};
  const el = document.createElement('div');
  document.body.replaceChildren(el);
  await widget.render({model, el});
  const gaps = []; let last = performance.now(), on = true;
  const frame = now => { gaps.push(now - last); last = now; if (on) requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  const costs = [];
  for (let tick = 0; tick < seconds * rate; tick++) {
    const states = ['idle', 'busy'];
    const doing = tick % 2 ? 'cell #' + tick : '';
    const changed = r => ({...r, state: states[(r.rank + tick) % 2], doing, cpu_percent: tick % 100});
    const ranks = status.ranks.map(changed);
    state.delta = {mesh: {num_cells: tick}, hosts: [], ranks, tick};
    const begin = performance.now();
    listeners['change:delta']();
    costs.push(performance.now() - begin);
    await new Promise(f => setTimeout(f, 1000 / rate));
  }
  on = false;
  return {gaps, costs};
}"""


def shares(values: list[float]) -> str:
    """Return median, 95th percentile and maximum."""
    ordered = sorted(values)
    return (
        f"p50 {statistics.median(ordered):.0f}, p95 {ordered[int(len(ordered) * 0.95)]:.0f}, max "
        f"{ordered[-1]:.0f}"
    )


def state_to_page(page: Page) -> None:
    """A rank begins to sleep, and ends: when does the panel show it?"""
    from monarch_nb import mesh as meshes

    mesh = meshes.start("bench", {"gpus": 8})
    try:
        page.execute("monarch-nb:open-panel")
        page.page.wait_for_function(
            "document.querySelectorAll('#monarch-nb-panel .mnb-cell.mnb-idle').length === 8"
        )
        mesh.run("import time")
        page.page.evaluate(_OBSERVE)
        went = []
        for _ in range(NUM_CHANGES):
            mesh.run("began = time.time(); time.sleep(0.6); ended = time.time()")
            went.append((*mesh.pull("began", ranks="3").values(), *mesh.pull("ended", ranks="3").values()))
            time.sleep(0.3)
        seen = page.page.evaluate("window.mnbSeen")
        delays = []
        for i, busy in ((0, True), (1, False)):
            for times in went:
                found = next((t for t, b in seen if b == busy and t >= times[i]), None)
                if found is not None and found - times[i] < 5:
                    delays.append((found - times[i]) * 1000)
        print(
            f"state change on a rank to the page, {len(delays)} changes: {shares(delays)} ms (aim: "
            "p50 150, p95 400)"
        )
        controller = psutil.Process(mesh.status().pid)
        print(
            f"host process with 8 ranks, watched by the page: {cpu(controller, 8):.2f} % of a core (aim: 1 %)"
        )
    finally:
        mesh.stop().get(30)


def cpu(process: psutil.Process, seconds: float) -> float:
    """Return the share of a core that a process takes."""
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / seconds * 100


def frames(browser: Any) -> None:
    """256 ranks that all change, five times a second."""
    from monarch_nb._widgets.mesh_widget import SCRIPT

    ranks = [
        {
            "rank": r,
            "host": 0,
            "pid": r,
            "state": "idle",
            "reason": "",
            "doing": "",
            "since": 0,
            "cell": None,
            "line": "",
            "collective": None,
            "cpu_percent": 1,
            "memory_bytes": 1 << 30,
            "gpus": [],
            "gpu_memory_bytes": None,
            "last_line": "",
            "num_queued": 0,
        }
        for r in range(1024)
    ]
    for sizes in ([["hosts", 32], ["gpus", 8]], [["hosts", 128], ["gpus", 8]]):
        num = sizes[0][1] * sizes[1][1]
        status = {
            "name": "frames",
            "pid": 1,
            "started": time.time(),
            "sizes": sizes,
            "idle_timeout_s": 3600,
            "lease_left_s": None,
            "num_cells": 0,
            "is_healing": False,
            "on_failure": "stop",
            "journal": "",
            "clients": [],
            "versions": {},
            "environment": "",
            "hosts": [],
            "ranks": ranks[:num],
        }
        page = browser.new_page(viewport={"width": 900, "height": 700})
        page.goto("about:blank")
        found = page.evaluate(
            _FRAMES, {"script": SCRIPT.read_text(), "status": status, "seconds": 10, "rate": 5}
        )
        page.close()
        long = [g for g in found["gaps"] if g > 50]
        print(
            f"{num} ranks at 5 Hz: update {shares(found['costs'])} ms; {len(long)} of "
            f"{len(found['gaps'])} frames over 50 ms (aim: 0)"
        )


def idle_server(lab: Lab) -> None:
    """Nobody has a page open."""
    server = psutil.Process(lab._process.pid)
    print(f"server with our extension, no page open: {cpu(server, 15):.2f} % of a core")


def main() -> None:
    """Run all."""
    if not CHROMIUM:
        sys.exit("needs chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as root:
        os.environ["JUPYTER_RUNTIME_DIR"] = f"{root}/jupyter_runtime_dir"
        lab = Lab(Path(root))
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=CHROMIUM, args=["--disable-dev-shm-usage", "--disable-gpu"]
                )
                frames(browser)
                state_to_page(Page(browser, lab, ["1"], "bench.ipynb"))
                browser.close()
            idle_server(lab)
        finally:
            lab.close()


if __name__ == "__main__":
    print(json.dumps({"cores": os.cpu_count()}))
    main()
