"""Explains hangs: what each rank waits for, and which rank deviates from the others, in a sentence.

look       two looks at all ranks, a moment apart: `explain`
facts      what they have shown, as dataclasses
diagnoses   what is wrong: one function for each way in which a program can hang
calls      actors that wait for each other
report     HangReport: the table and the diagnoses, as text and HTML
automatic  a cell that makes no progress is explained without being asked
settings   after how long

The facts come from frames and from what process groups count themselves; nothing is recorded while a program
runs, so it costs nothing when nobody asks.
"""

from monarch_nb._why.diagnoses import Diagnosis
from monarch_nb._why.look import explain
from monarch_nb._why.report import HangReport, RankRow

__all__ = ["Diagnosis", "HangReport", "RankRow", "explain"]
