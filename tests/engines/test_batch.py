"""The same notebook under sbatch and papermill: its mesh is on the nodes of the job that it runs in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import sshd
from slurmd import SETUP, Cluster
from waiting import wait_until

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.allocation import Plan
from monarch_nb.job.engines import ENGINES
from monarch_nb.job.profiles import find_profile
from monarch_nb.mesh import on_engine

CELLS = (
    "%load_ext monarch_nb",
    "%mesh start batch --procs 1",
    "def where():\n    import os\n    return os.environ['SLURMD_NODENAME'], os.environ['SLURM_JOB_ID']",
    "import json, pathlib\nfound = sorted(batch.execute(where).get(60).values())\n"
    "pathlib.Path('found.json').write_text(json.dumps([found, batch.sizes, len(batch.status().hosts)]))",
    "%mesh stop",
)


def notebook(path: Path) -> None:
    written = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    nbformat.write(written, path)


def test_a_notebook_in_a_job_takes_its_nodes(cluster: Cluster, tmp_path: Path) -> None:
    notebook(tmp_path / "in.ipynb")
    script = (
        f"#!/bin/bash\n{SETUP}\nexport SLURM_CONF={cluster.config} JUPYTER_DATA_DIR={tmp_path}/data "
        f"XDG_CONFIG_HOME={tmp_path}\ncd {tmp_path}\n"
        f"{sys.executable} -m ipykernel install --prefix {tmp_path}/k --name here >/dev/null\n"
        f"export JUPYTER_PATH={tmp_path}/k/share/jupyter\n"
        f"exec {sys.executable} -m papermill in.ipynb out.ipynb -k here\n"
    )
    (tmp_path / "job.sh").write_text(script)
    output = tmp_path / "said"
    job = cluster.command("sbatch", "--parsable", "--nodes=2", f"--output={output}", str(tmp_path / "job.sh"))
    assert job.isdigit()
    try:
        wait_until(
            lambda: (tmp_path / "found.json").exists() or not cluster.command("squeue", "-h", "-j", job),
            f"a notebook that has run: {output}",
        )
        assert (tmp_path / "found.json").exists(), output.read_text()
        wait_until(lambda: not cluster.command("squeue", "-h", "-j", job), "a job that has ended")
        found, sizes, num_hosts = json.loads((tmp_path / "found.json").read_text())
        assert len({node for node, _ in found}) == 2 and {number for _, number in found} == {job}
        assert sizes == {"hosts": 2, "procs": 1} and num_hosts == 3, "the controller, and both nodes"
    finally:
        cluster.command("scancel", job)
    wait_until(lambda: cluster.idle_nodes() == 3, "idle nodes")


@pytest.mark.skipif(bool(sshd.why_not()), reason=sshd.why_not())
def test_a_mesh_inside_a_job_is_used_through_a_login_node(cluster: Cluster, tmp_path: Path) -> None:
    """The controller is on the job's first node; the laptop has ssh to the login node, and nothing else."""
    server = sshd.Sshd(tmp_path / "sshd", ["login"])
    ours = f"{sys.executable} -P -m monarch_nb"
    script = (
        f"#!/bin/bash\n{SETUP}\nexport SLURM_CONF={cluster.config} JUPYTER_DATA_DIR={tmp_path}/data "
        f"JUPYTER_RUNTIME_DIR={tmp_path}/run XDG_CONFIG_HOME={tmp_path}\ncd {tmp_path}\n"
        f"{ours} start big --procs 1 && {ours} share big --own --file big.join && {ours} wait big\n"
    )
    (tmp_path / "job.sh").write_text(script)
    said = tmp_path / "said"
    job = cluster.command("sbatch", "--parsable", "--nodes=2", f"--output={said}", str(tmp_path / "job.sh"))
    near = {
        **os.environ,
        "PATH": server.put_on_path(tmp_path / "bin"),
        "JUPYTER_RUNTIME_DIR": f"{tmp_path}/near",
        "JUPYTER_DATA_DIR": f"{tmp_path}/near-data",
    }

    def here(*command: str) -> str:
        done = subprocess.run([*ours.split(), *command], env=near, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        wait_until(
            lambda: (tmp_path / "big.join").exists() or not cluster.command("squeue", "-h", "-j", job),
            f"a mesh in the job: {said}",
        )
        assert (tmp_path / "big.join").exists(), said.read_text()
        here("attach", f"login:{tmp_path}/big.join")
        assert sorted(
            re.findall(r"\bn\d", here("exec", "big", "import os; print(os.environ['SLURMD_NODENAME'])"))
        ) == ["n1", "n2"]
        here("stop", "big")
        wait_until(lambda: not cluster.command("squeue", "-h", "-j", job), "the job has ended with the mesh")
        assert "mesh 'big' has ended" in said.read_text()
    finally:
        cluster.command("scancel", job)
        server.close()
    wait_until(lambda: cluster.idle_nodes() == 3, "idle nodes")


def test_outside_of_a_job_it_says_what_to_type() -> None:
    with pytest.raises(
        MeshUsageError, match=r"runs in no Slurm job .*: start the notebook by sbatch or salloc"
    ):
        on_engine.start_on("gone", find_profile("auto", ENGINES), Plan())
