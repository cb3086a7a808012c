"""Profiles of cells: one trace of all ranks, a table of operators, memory.

`request` says what is asked of the ranks, and is checked before anything is sent. `collecting` fetches what
they have recorded and writes it next to the notebook: `trace_file` is one file for Perfetto, `operators` and
`memory` are folded over ranks, `report` shows it all.
"""

from monarch_nb.profile.collecting import collect
from monarch_nb.profile.report import Profile
from monarch_nb.profile.request import ProfileRequest

__all__ = ["Profile", "ProfileRequest", "collect"]
