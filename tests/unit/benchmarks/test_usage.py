"""CPU and memory of real process trees."""

import os
import subprocess
import sys

from benchmarks.usage import OtherCpu, cpu_s, descendants, memory, named, tree

BURN = "import time\nwhile time.process_time() < 0.15: pass\n"
# A process that leaves its work to a child that ends, and to one that stays.
PROGRAM = (
    f"import subprocess, sys\nburn = {BURN!r}\n"
    "subprocess.run([sys.executable, '-c', burn])\n"
    "child = subprocess.Popen([sys.executable, '-c', burn + 'print(flush=True); input()'], stdin=subprocess.PIPE,\n"
    "    stdout=subprocess.PIPE)\n"
    "child.stdout.readline()\nprint(flush=True)\ninput()\nchild.communicate(b'.')"
)


def test_cpu_of_children_counts_whether_they_live_or_have_ended() -> None:
    """What others used is never less than nothing."""
    other_cpu = OtherCpu(os.getpid())
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_s, held, processes = cpu_s(process.pid), memory(process.pid), tree(process.pid)
        assert named(process.pid, "pyth") == descendants(process.pid) == [processes[1].pid]
        process.communicate(b"\n")

    assert used_s >= 0.28  # ticks are cut off
    assert held.rss_bytes >= held.pss_bytes > 0
    assert len(processes) == 2
    assert other_cpu.other_cores() >= 0.0
