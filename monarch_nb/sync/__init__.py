"""What the notebook runs with, on every host: files of the workspace, the environment, and what was done, as a receipt.

receipt      what a sync has done, in parts: what was placed on hosts, what ranks have reloaded
env/         the environment: what it consists of, and how a host makes it anew
"""

from monarch_nb.sync.receipt import Part, SyncReceipt

__all__ = ["Part", "SyncReceipt"]
