"""Copies the workspace's files and the notebook's environment to every host; returns a receipt of what was
done.

ignore       which files of a folder are a workspace's
workspace    a folder of this machine: what its files hold now
hosts        one workspace on its way to one host
following    all workspaces of this program, and what each host has of them
report       what was done with a workspace
receipt      what a sync has done, in parts: what was placed on hosts, what ranks have reloaded
env/         the environment: what it consists of, and how a host makes it anew
hints        what to type when a rank lacks a module that is here
"""

from monarch_nb._sync.following import (
    Followed,
    SyncOptions,
    Workspaces,
    copies_behind,
    known_workspaces,
    workspaces_of,
)
from monarch_nb._sync.receipt import Part, SyncReceipt
from monarch_nb._sync.report import HostWorkspace, WorkspaceReceipt

__all__ = [
    "Followed",
    "HostWorkspace",
    "Part",
    "SyncOptions",
    "SyncReceipt",
    "WorkspaceReceipt",
    "Workspaces",
    "copies_behind",
    "known_workspaces",
    "workspaces_of",
]
