"""Which scenes are explored, by name."""

from tests.explorer.both_ways import ASIDE, BothWays, FullOfEachOther
from tests.explorer.scene import Scene

QUICK = {
    "one transfer": Scene(samples=True),
    "one, with digests": Scene(verify=True),
    "two, one block": Scene(transfers=2, pool=1, crashes_p=0, crashes_d=0),
    "two, no crash": Scene(transfers=2, crashes_p=0, crashes_d=0),
    "no silence": Scene(cut_off=False, crashes_p=0, crashes_d=0),
    "two P ranks": Scene(prefill_ranks=2, crashes_p=0, crashes_d=0, samples=True),
    "two D ranks": Scene(decode_ranks=2, crashes_p=0, crashes_d=0),
    "an answer returns": BothWays(),
    "full of each other": FullOfEachOther(),
}
FULL = {
    "one transfer": Scene(samples=True),
    "one, with digests": Scene(verify=True, samples=True),
    "one, two layers": Scene(layers=2),
    "two, one block": Scene(transfers=2, pool=1, asks_again=False),
    "two, no crash, digests": Scene(transfers=2, verify=True, crashes_p=0, crashes_d=0),
    "two": Scene(transfers=2, asks_again=False),
    "no silence": Scene(cut_off=False, crashes_p=0, crashes_d=0),
    "two P ranks, one dies": Scene(prefill_ranks=2, crashes_d=0, samples=True),
    "two P ranks, D dies": Scene(prefill_ranks=2, crashes_p=0),
    "two D ranks, one dies": Scene(decode_ranks=2, crashes_p=0, samples=True),
    "two D ranks, P dies": Scene(decode_ranks=2, crashes_d=0),
    "an answer returns": BothWays(),
    "one prompt, steps that lag": BothWays(transfers=1, lags=True),
    "full of each other": FullOfEachOther(),
}
DEEP = {
    "one, two layers, digests": Scene(layers=2, verify=True),
    "two, asked again": Scene(transfers=2),
    "another answer returns": BothWays(other_answer=True),
    "an answer returns, cancelled": BothWays(left_out=ASIDE - {"cancel"}),
    "an answer returns, aborted": BothWays(left_out=ASIDE - {"abort"}),
    "an answer returns, steps that lag": BothWays(lags=True),
    "an answer returns, evicted and preempted": BothWays(left_out=ASIDE - {"evict", "preempt"}),
    "an answer returns, N1 dies": BothWays(crashes_d=1, cut_off=True),
    "an answer returns, N dies": BothWays(crashes_p=1, cut_off=True),
    "full of each other, aborted": FullOfEachOther(left_out=ASIDE - {"abort"}),
    "full of each other, a prefill node": FullOfEachOther(pools=(2, 1), roles=("prefill", "decode")),
}
SUITES = {"quick": QUICK, "full": FULL, "deep": DEEP}
