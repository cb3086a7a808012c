"""One debugger for all ranks: what stands where, and lines for pdb that go to many at once.

client   the stops of a mesh, and commands to them
fold     equal places and equal answers once
grammar  what is typed at the prompt
prompt   the prompt itself: in a cell, after `%mesh debug`, or in a terminal
"""

from monarch_nb.debug.client import Answers, MeshDebugger, Stop
from monarch_nb.debug.prompt import Prompt

__all__ = ["Answers", "MeshDebugger", "Prompt", "Stop"]
