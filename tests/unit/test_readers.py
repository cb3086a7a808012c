"""Threads that meet a type of messages at the same time: without care, msgspec would crash the program."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading, types
from monarch_nb._protocol.base import decode, encode

sys.setswitchinterval(1e-6)
NUM = 40
SOURCE = "from __future__ import annotations\\nfrom monarch_nb._protocol.base import Record\\n" + "".join(
    f"class C{i}(Record, frozen=True):\\n    number: int\\n    inner: tuple[C{(i + 1) % NUM}, ...] = ()\\n"
    f"    named: dict[str, C{(i + 7) % NUM}] = {{}}\\n"
    for i in range(NUM)
)
for time in range(20):
    made = sys.modules[f"made{time}"] = types.ModuleType(f"made{time}")
    exec(SOURCE, vars(made))
    message = made.C0(1, (made.C1(2, (made.C2(3),)),), {"x": made.C7(4)})
    data, found = encode(message), []
    start = threading.Barrier(4)

    def meet():
        start.wait()
        found.append(decode(made.C0, data))

    threads = [threading.Thread(target=meet) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [message] * 4, found
print("read by all")
"""


def test_threads_that_meet_a_type_at_the_same_time_do_not_crash_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "read by all\n"), done.stderr[-2000:]
