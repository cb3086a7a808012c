"""The base class of actors whose state is saved and restored."""

from __future__ import annotations

from typing import Any

from monarch_nb._transport.context import call_context
from monarch_nb.actor.actor_mesh import Actor
from monarch_nb.actor.endpoint import endpoint


class Checkpointed(Actor):
    """An actor whose state is saved in the background; when it is healed, it continues from the saved state.

    A subclass says what its state is by `state_dict` and `load_state_dict`, as torch modules and optimizers
    do: tensors (DTensors, too) in dictionaries and lists, beside numbers and other values that can be
    pickled. When a rank is healed, all ranks of the actor are constructed anew with the arguments of their
    spawn and go on from the newest state that all have; so their constructors are the place to wrap a model
    in DDP or FSDP. Calls after that state are lost: a training loop asks the actor for its step and goes on
    from there.

    Attributes:
        checkpoint_every: save after so many calls, and once in the beginning; 0: only when asked to, or when
            the host is about to be taken away (SIGTERM).
        checkpoint_state: "own": each rank has a state of its own; "replicated": all have the same (DDP),
            which is written once and handed over from memory to memory; "sharded": DTensors (FSDP), and all
            else the same: it may be loaded by another number of ranks.
        checkpoint_keep: number of checkpoints that are kept on disk.
        checkpoint_dir: directory of the checkpoints, which all ranks must see. By default beside the mesh's
            journal, which is enough for one machine.

    Example:
        >>> class Trainer(Checkpointed):                     # doctest: +SKIP
        ...     checkpoint_every, checkpoint_state = 100, "replicated"
        ...     def __init__(self):
        ...         self.model = DDP(Net())
        ...         self.optimizer = Adam(self.model.parameters())
        ...     def state_dict(self):
        ...         return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        ...     def load_state_dict(self, state):
        ...         self.model.load_state_dict(state["model"])
        ...         self.optimizer.load_state_dict(state["optimizer"])
    """

    checkpoint_every: int = 0
    checkpoint_state: str = "own"
    checkpoint_keep: int = 2
    checkpoint_dir: str = ""

    def state_dict(self) -> Any:
        """Return the state to save. It's copied at once."""
        raise NotImplementedError(f"{type(self).__name__} must say what its state is: define state_dict()")

    def load_state_dict(self, state: Any) -> None:
        """Restore a state that `state_dict` has returned."""
        raise NotImplementedError(
            f"{type(self).__name__} must take its state back: define load_state_dict(state)"
        )

    @endpoint
    def checkpoint(self) -> str:
        """Save the present state and wait until it's on disk; return the directory. Call it on all ranks
        together.

        Raises:
            CheckpointError: if it can't be completed; the last good one is still there.

        Example:
            >>> trainer.checkpoint.call().get()               # doctest: +SKIP
        """
        runner = call_context.get().actor
        return str(runner.checkpoints.save_now(self))

    @endpoint
    def num_calls(self) -> int:
        """Return the number of counted calls: those before the last restored state, and since."""
        return int(call_context.get().actor.checkpoints.num_calls)
