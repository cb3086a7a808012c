"""Where hosts come from.

    base      JobTrait and JobState: apply, state, kill; job_load
    local     LocalJob: this machine, one host
    process   ProcessJob: several hosts on this machine, talking as real ones do

A job's hosts are named host meshes: `ProcessJob({"hosts": 2}).state().hosts.spawn_procs({"gpus": 4})`.
"""

from monarch_nb.job.base import JobState, JobTrait, job_load, job_loads
from monarch_nb.job.local import LocalJob
from monarch_nb.job.process import ProcessJob

__all__ = ["JobState", "JobTrait", "LocalJob", "ProcessJob", "job_load", "job_loads"]
