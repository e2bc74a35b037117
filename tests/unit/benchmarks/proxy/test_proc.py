import os
import subprocess
import sys

from benchmarks.proxy.proc import Memory, Stat, cpu_s, descendants, memory, parse_memory, parse_stat

LINE = (
    "4242 (tokio-rt (x) 1) S 17 4242 17 0 -1 4194304 100 200 0 0 "
    "31 12 5 2 20 0 9 0 777 1000000 500 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)


def stat(pid: int, parent: int) -> Stat:
    """A process without a history."""
    return Stat(pid, parent, 0, 0, 1)


def test_a_stat_line_is_read_whatever_its_name_holds() -> None:
    """Brackets and spaces in the name move no field; own time is utime + stime, of children cutime + cstime."""
    assert parse_stat(LINE) == Stat(pid=4242, parent=17, own_ticks=43, reaped_ticks=7, threads=9)


def test_memory_is_read_in_bytes() -> None:
    """Rss and Pss of a rollup, whose first line names the range."""
    rollup = "55d0-7ffc ---p 00000000 00:00 0    [rollup]\nRss:   2048 kB\nPss:   1024 kB\nPss_Dirty:  9 kB\n"

    assert parse_memory(rollup) == Memory(rss_bytes=2 << 20, pss_bytes=1 << 20)


def test_descendants_are_the_root_and_all_below_it() -> None:
    """Children of children count, siblings and parents do not; a root that has ended has none."""
    stats = [stat(1, 0), stat(10, 1), stat(11, 10), stat(12, 11), stat(20, 1)]

    assert sorted(one.pid for one in descendants(10, stats)) == [10, 11, 12]
    assert descendants(99, stats) == []


def test_cpu_of_children_counts_whether_they_live_or_have_ended() -> None:
    """A process that leaves its work to a child that ends, and to one that stays, has used the time of both."""
    burn = "import time\nwhile time.process_time() < 0.15: pass\n"
    program = (
        f"import subprocess, sys\nburn = {burn!r}\n"
        "subprocess.run([sys.executable, '-c', burn])\n"
        "child = subprocess.Popen([sys.executable, '-c', burn + 'print(flush=True); input()'], stdin=subprocess.PIPE,\n"
        "    stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nprint(flush=True)\ninput()\nchild.communicate(b'.')"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_s = cpu_s(process.pid)
        held = memory(process.pid)
        process.communicate(b"\n")

    assert used_s >= 0.28  # ticks are cut off
    assert held.rss_bytes >= held.pss_bytes > 0


def test_our_own_clock_agrees_with_what_the_tree_says() -> None:
    """The CPU clock of a process is its utime + stime."""
    before = sum(os.times()[:2])
    seen_s = cpu_s(os.getpid()) - sum(os.times()[2:4])

    assert before - 0.05 <= seen_s <= sum(os.times()[:2]) + 0.05
