"""TensorBoard, Weights & Biases and MLflow, as far as a run needs them. Each is imported at its first use."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from monarch_nb.exceptions import MeshUsageError

_ANSWER_S = 10.0
_RANK = re.compile(r"/(rank\d+)$")
Config = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class RunSpec:
    """The specification of a run that hasn't begun yet.

    Attributes:
        to: name of the tracker.
        name: name of the run.
        project: project that it belongs to (MLflow: the experiment).
        key: unique key; a run with the same key is continued.
        folder: folder of the run, if the tracker keeps it on this machine; empty: its default.
        group: group of the run (W&B): the mesh.
        config: the user's configuration.
        facts: facts about the mesh.
    """

    to: str
    name: str
    project: str
    key: str
    folder: str = ""
    group: str = ""
    config: Config = field(default_factory=dict)
    facts: Config = field(default_factory=dict)

    @property
    def all_config(self) -> dict[str, str | int | float | bool]:
        """The user's settings, and the mesh's facts under names that begin with `mesh/`."""
        return {**self.config, **{f"mesh/{name}": value for name, value in self.facts.items()}}


class Backend(Protocol):
    """The interface of a run that has begun."""

    where: str
    """Where users find the run."""

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Record the values of a step."""

    def finish(self, *, failed: bool) -> None:
        """End the run, as failed or as successful."""


class TensorBoard:
    """A run of TensorBoard: event files, written by torch's SummaryWriter."""

    def __init__(self, spec: RunSpec) -> None:
        module = _module("torch.utils.tensorboard", spec.to)
        self.where = os.path.join(spec.folder or "runs", spec.project, spec.name)
        self._writer = module.SummaryWriter(self.where)
        for name, value in spec.all_config.items():
            self._writer.add_text(name, str(value))

    def write(self, values: Mapping[str, float], step: int) -> None:
        """See `Backend`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, *, failed: bool) -> None:
        """See `Backend`. Event files don't say how a run has ended."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases; offline if WANDB_MODE says so. It prints nothing."""

    def __init__(self, spec: RunSpec) -> None:
        wandb = _module("wandb", spec.to)
        found = wandb.setup().settings
        if found.mode not in ("offline", "disabled"):
            _check_answers(found.base_url, spec.to)
        self._run = wandb.init(
            project=spec.project, name=spec.name, group=spec.group or None, id=spec.key, resume="allow",
            config=spec.all_config, dir=spec.folder or None,
            # Without `reinit` a second run of this process would continue the first one.
            settings=wandb.Settings(silent=True, console="off", reinit="create_new"),
        )  # fmt: skip
        # Ranks may be at different steps, and W&B drops values for an earlier one: so the step is logged as a
        # value.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.where = self._run.dir if self._run.offline else self._run.url

    def write(self, values: Mapping[str, float], step: int) -> None:
        """See `Backend`."""
        self._run.log({**values, "step": step})

    def finish(self, *, failed: bool) -> None:
        """See `Backend`."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """A run of an MLflow experiment."""

    def __init__(self, spec: RunSpec) -> None:
        tracking = _module("mlflow.tracking", spec.to)
        self._client = tracking.MlflowClient(spec.folder or None)
        _check_answers(self._client.tracking_uri, spec.to)
        known = self._client.get_experiment_by_name(spec.project)
        experiment = self._client.create_experiment(spec.project) if known is None else known.experiment_id
        found = self._client.search_runs([experiment], f"tags.monarch_nb = '{spec.key}'", max_results=1)
        tags = {"monarch_nb": spec.key}
        run = found[0] if found else self._client.create_run(experiment, tags=tags, run_name=spec.name)
        self._id = run.info.run_id
        for name, value in spec.all_config.items():
            self._client.log_param(self._id, name, value)
        self.where = f"experiment {spec.project!r}, run {self._id}"

    def write(self, values: Mapping[str, float], step: int) -> None:
        """See `Backend`."""
        for name, value in values.items():
            # MLflow's file store can't have both `loss` and `loss/rank0`.
            self._client.log_metric(self._id, _RANK.sub(r".\1", name), value, step=step)

    def finish(self, *, failed: bool) -> None:
        """See `Backend`."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


BACKENDS: dict[str, Callable[[RunSpec], Backend]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def _check_answers(address: str, to: str) -> None:
    """Check that a server answers, by one request: the trackers themselves would retry for minutes.

    Raises:
        ConnectionError: if the server doesn't answer.
    """
    if not address.startswith(("http://", "https://")):
        return
    requests = _module("requests", to)
    try:
        requests.get(address, timeout=_ANSWER_S)
    except requests.exceptions.SSLError:
        return  # somebody is there, and the tracker has settings of its own for that
    except requests.exceptions.RequestException as error:
        raise ConnectionError(f"no server answers at {address} ({_innermost(error)})") from None


def _innermost(error: BaseException) -> str:
    """Return the message of the first error in a chain; the later ones repeat it, with addresses of
    objects.
    """
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return str(error) or type(error).__name__


def _module(name: str, to: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "mlflow" if to == "mlflow" else to
        raise MeshUsageError(
            f"track: {to} isn't installed where the ranks run ({error}): pip install {package}"
        ) from None
