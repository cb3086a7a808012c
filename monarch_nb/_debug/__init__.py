"""One debugger for all ranks: the list of stopped threads, and pdb commands that go to many at once.

client   the stops of a mesh, and commands to them
fold     equal places and equal answers once
grammar  what is typed at the prompt
question a question at the keyboard that can be taken back
prompt   the prompt itself: in a cell, after `%mesh debug`, or in a terminal
"""

from monarch_nb._debug.client import Answers, MeshDebugger
from monarch_nb._debug.prompt import Prompt
from monarch_nb._debug.question import Question, TakenBack
from monarch_nb._protocol.debugging import Stop

__all__ = ["Answers", "MeshDebugger", "Prompt", "Question", "Stop", "TakenBack"]
