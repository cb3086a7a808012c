"""Experiment trackers: each rank's scalars in one run of TensorBoard, Weights & Biases or MLflow.

    >>> import monarch_nb
    >>> run = monarch_nb.track(mesh, to="tensorboard", config={"lr": 0.1})       # doctest: +SKIP
    >>> mesh.run("from monarch_nb.tracking import log; log({'loss': loss}, step)")   # doctest: +SKIP
    >>> run.finish()                                                             # doctest: +SKIP

tracker   what users call; the actor that has the run
means     ranks' values of a step, put together
backends  the trackers; none is needed by this package
facts     what is recorded of a mesh by itself
"""

from monarch_nb.tracking.tracker import TrackedRun, log, track

__all__ = ["TrackedRun", "log", "track"]
