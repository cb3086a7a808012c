"""Jobs, which obtain hosts and release them; the hosts of a job are named host meshes.

>>> from monarch_nb.job import ProcessJob
>>> job = ProcessJob({"hosts": 2})                       # doctest: +SKIP
>>> procs = job.state().hosts.spawn_procs({"gpus": 4})   # doctest: +SKIP
>>> job.kill()                                           # doctest: +SKIP
"""

from monarch_nb.job.base import DEFAULT_JOB_PATH, JobState, JobTrait, job_load, job_loads
from monarch_nb.job.commands import exec_command
from monarch_nb.job.engine_job import KubernetesJob, LightningJob, RayJob, SkyPilotJob, SlurmJob, SSHJob
from monarch_nb.job.local import LocalJob
from monarch_nb.job.port_forward import PortForwarder
from monarch_nb.job.process import ProcessJob, hosts_from_config
from monarch_nb.job.shell import shell

__all__ = [
    "DEFAULT_JOB_PATH",
    "JobState",
    "JobTrait",
    "KubernetesJob",
    "LightningJob",
    "LocalJob",
    "PortForwarder",
    "ProcessJob",
    "RayJob",
    "SSHJob",
    "SkyPilotJob",
    "SlurmJob",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "shell",
]
