"""Where hosts come from.

    base          JobTrait and JobState: apply, state, kill; job_load
    local         LocalJob: this machine, one host
    process       ProcessJob: several hosts on this machine, talking as real ones do
    commands      exec_command: programs on the hosts
    shell         shell: a shell on one of them
    port_forward  PortForwarder: their ports

A job's hosts are named host meshes: `ProcessJob({"hosts": 2}).state().hosts.spawn_procs({"gpus": 4})`.
"""

from monarch_nb.job.base import DEFAULT_JOB_PATH, JobState, JobTrait, job_load, job_loads
from monarch_nb.job.commands import exec_command
from monarch_nb.job.local import LocalJob
from monarch_nb.job.port_forward import PortForwarder
from monarch_nb.job.process import ProcessJob, hosts_from_config
from monarch_nb.job.shell import shell

__all__ = [
    "DEFAULT_JOB_PATH",
    "JobState",
    "JobTrait",
    "LocalJob",
    "PortForwarder",
    "ProcessJob",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "shell",
]
