"""A queue and a replay buffer of rollouts for reinforcement learning between meshes: they hold producers back
when consumers can't keep up. Weights travel in the other direction by `rdma.publish(state, version=0)`.

    >>> from monarch_nb.rl import RolloutQueue
    >>> queue = trainer_mesh.slice(gpus=0).spawn("rollouts", RolloutQueue, 32)    # doctest: +SKIP
    >>> queue.put.call_one({"tokens": tokens}, version).get()                     # doctest: +SKIP
    >>> batch = queue.get.call_one(8).get()                                       # doctest: +SKIP
"""

from monarch_nb.rl.buffer import ReplayBuffer
from monarch_nb.rl.queue import QueueClosed, QueueState, Rollout, RolloutQueue

__all__ = ["QueueClosed", "QueueState", "ReplayBuffer", "Rollout", "RolloutQueue"]
