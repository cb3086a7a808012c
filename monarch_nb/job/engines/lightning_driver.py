"""Requests to Lightning AI, in a separate process: by an interpreter that has lightning_sdk and may have
nothing else of ours. A request is read as JSON from standard input, and answered as JSON in the last line
of standard output.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def submit_job(request: dict[str, Any]) -> str:
    """Start a job of several machines; return its name."""
    from lightning_sdk import Job, Machine  # type: ignore[import-not-found,unused-ignore]

    job = Job.run(
        name=request["name"],
        machine=Machine.from_str(request["machine"]),
        command=request["command"],
        num_machines=request["num"],
        interruptible=request["interruptible"],
        max_runtime=request["max_runtime"],
        **{key: request[key] for key in ("studio", "teamspace") if request.get(key)},
    )
    return str(job.name)


def _job(request: dict[str, Any]) -> Any:
    from lightning_sdk import Job

    return Job(request["name"], **({"teamspace": request["teamspace"]} if request.get("teamspace") else {}))


def look_at(request: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a job, and the last lines that it has written if it has ended."""
    job = _job(request)
    status = str(job.status)
    words = ""
    if status in ("Stopped", "Completed", "Failed"):
        try:
            words = str(job.logs)[-4000:]
        except Exception as error:  # logs come later than the end, or never
            words = f"no logs: {error}"
    return {"status": status, "words": words}


def end_job(request: dict[str, Any]) -> None:
    """Stop a job, if it hasn't ended."""
    job = _job(request)
    if str(job.status) not in ("Stopped", "Completed", "Failed"):
        job.stop()


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    try:
        answer = {"submit": submit_job, "look": look_at, "end": end_job}[asked.pop("do")](asked)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(answer))
