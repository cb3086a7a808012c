"""What the notebook runs with, on every host: files of the workspace, and what was done, as a receipt.

receipt      what a sync has done, in parts: what was placed on hosts, what ranks have reloaded
"""

from monarch_nb.sync.receipt import Part, SyncReceipt

__all__ = ["Part", "SyncReceipt"]
