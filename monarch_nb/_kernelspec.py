"""The kernelspec "Python 3 (mesh)": an IPython kernel that has loaded `monarch_nb`."""

from __future__ import annotations

import json
import os
import sys

NAME = "python3-mesh"
DISPLAY_NAME = "Python 3 (mesh)"


def specification() -> dict[str, object]:
    """Return the content of kernel.json."""
    return {
        "argv": [
            sys.executable,
            "-m",
            "ipykernel_launcher",
            "-f",
            "{connection_file}",
            "--IPKernelApp.extra_extensions=monarch_nb",
        ],
        "display_name": DISPLAY_NAME,
        "language": "python",
        "metadata": {"debugger": True},
    }


def install(prefix: str = sys.prefix) -> str:
    """Write the kernelspec below `prefix`; return its directory."""
    directory = os.path.join(prefix, "share", "jupyter", "kernels", NAME)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "kernel.json"), "w") as file:
        json.dump(specification(), file, indent=1)
    return directory
