"""Hosts of a real Slurm from the panel: asked for, queued, granted, cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurmd
from lab import CHROMIUM, Lab, Page
from waiting import wait_until

pytestmark = pytest.mark.skipif(bool(slurmd.why_not()), reason=slurmd.why_not())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurmd.Cluster]:
    if not CHROMIUM:
        pytest.skip("needs chromium: apt-get install chromium")
    found = slurmd.Cluster(tmp_path_factory.mktemp("slurm"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def lab(cluster: slurmd.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab that has a profile of the cluster, and one that can't be used."""
    folder = tmp_path_factory.mktemp("config")
    (folder / "monarch_nb").mkdir()
    profiles = folder / "monarch_nb" / "clusters.toml"
    profiles.write_text(
        f'[lab]\nengine = "slurm"\nsetup = [{slurmd.SETUP!r}]\nhosts = 2\ngpus = 2\ntime = "1h"\n'
        'usd_per_gpu_hour = 3\n[away]\nengine = "slurm"\nlogin = "nowhere.invalid"\n'
    )
    profiles.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.config))
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        opened = Lab(tmp_path_factory.mktemp("lab"))
    yield opened
    opened.close()


def test_hosts_are_asked_for_waited_for_and_cancelled(
    lab: Lab, browser: Any, cluster: slurmd.Cluster, pictures: Path
) -> None:
    other = cluster.command(
        "sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"
    )
    page = Page(browser, lab, ["1"], "clusters.ipynb")
    page.execute("monarch-nb:open-panel")
    panel = page.page.locator("#monarch-nb-panel")
    where = panel.get_by_label("Where")
    where.locator("option", has_text="lab: slurm").wait_for(state="attached")

    # A profile that can't be used says why, before anything is sent.
    where.select_option("on:away")
    panel.locator(".mnb-problem", has_text="away cannot be used here: ").wait_for()
    where.select_option("on:lab")
    assert panel.get_by_label("Time, as in 2h").get_attribute("placeholder") == "1 h"
    panel.get_by_label("Name").fill("wide")
    panel.get_by_label("Hosts", exact=True).fill("3")
    panel.get_by_label("Dimension").fill("procs")
    panel.get_by_label("Size").fill("1")
    page.picture(pictures / "clusters-form.png")
    panel.get_by_role("button", name="Start", exact=True).click()

    # It waits in the queue, and the panel says why.
    request = panel.get_by_role("group", name="Hosts of mesh wide")
    request.get_by_text(re.compile(r"queued .* \((Resources|Priority)\), 3 hosts")).wait_for()
    assert re.search(r"slurm job \d+ on lab", request.inner_text())
    page.picture(pictures / "clusters-queued.png")

    # The other job ends: hosts come, and the ranks with them.
    cluster.command("scancel", other)
    mesh = panel.locator(".mnb-mesh", has_text="wide")
    mesh.get_by_text("3 idle").wait_for()
    price = r"\d+ min left, 6 GPUs, about \d+\.\d\d \$ so far"
    request.get_by_text(re.compile(rf"granted, 3 hosts, {price}")).wait_for()
    mesh.get_by_text(re.compile(rf"slurm job \d+ on lab, {price}")).wait_for()
    page.picture(pictures / "clusters-granted.png")

    # Giving them back asks first.
    request.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_text("The mesh's ranks end").wait_for()
    page.picture(pictures / "clusters-cancel.png")
    dialog.get_by_role("button", name="Keep them").click()
    assert mesh.count() == 1
    request.get_by_role("button", name="Cancel", exact=True).click()
    dialog.get_by_role("button", name="Cancel the hosts").click()
    request.wait_for(state="detached")
    mesh.wait_for(state="detached")
    wait_until(lambda: cluster.idle_nodes() == 3, "idle nodes")
    assert page.errors == [] and page.strangers == []
