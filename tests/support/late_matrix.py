"""`python -m tests.support.late_matrix`: writes docs/benchmarks/late_device.md, which layer leaves when on a late device.

A simulation, whose figures are the same on every machine; `test_late_device.py` holds the page to it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from baton.kv_connector.worker_side.sync import POLICIES
from tests.support.late_prefill import RankResult, Scenario, run

PAGE = Path(__file__).parents[2] / "docs/benchmarks/late_device.md"
BASE = Scenario()
SCENARIOS: Mapping[str, Scenario] = {
    "one chunk": BASE,
    "four chunks": replace(BASE, chunks=4),
    "backlog: reserved at 60 ms": replace(BASE, reserved_s=0.060),
    "prefix hit: half the prompt": replace(BASE, cached_tokens=1024, launch_s=0.010, compute_s=0.050),
    "preempted before the third of four chunks": replace(BASE, chunks=4, void_before_chunk=2),
    "a drafter's layer behind the 32": replace(BASE, draft_layers=1),
}
CELLS = [(name, policy, tp) for name in SCENARIOS for policy in POLICIES for tp in (1, 2)]
PICTURE_MS = range(10, 121, 10)

HEAD = """\
# Which layer leaves when, on a late device

**A simulation, not a measurement.** The prefill worker, its sender, its waiter and their threads are the real ones; the device, the link,
the decode rank and the clock are played (`tests/support/late_prefill.py`). It shows the order of events and their arithmetic, which a CPU
cannot show, since there a kernel has returned before its hook runs. It says nothing about the speed of any hardware. Figures are the same on every
machine; `python -m tests.support.late_matrix` writes this page, and a test holds it to the code.

A prompt of 2,048 tokens and 32 layers (8 MiB each): the host launches them in 10 ms, the device computes them in 100 ms (C), the idle link carries
their KV in 100 ms (X). A launch returns at once; waking a thread that waits for an event costs 50 µs, submitting a push 100 µs. With TP 2 each rank
has a device and a link of its own, as above, and the second device is 3 % slower; the table shows the rank that hides less.

## One chunk: how many of the 32 layers have left

"""

TABLE = """
## All cases

*before the end*: target layers whose last push was submitted before the device had computed the last layer. *late*: the others, which left after
it. *latest*: the longest that a layer's last push was submitted behind the instant at which the device had written the layer, ms; behind a busy link, or
behind a late RESERVE, that is waiting in turn. *hidden*: (C + X − M) / min(C, X) by the clock of the simulation, M being the instant of COMMIT;
*reported*: what the worker says (`baton_hidden_share`), with the time in which some push was under way for X.

| case | policy | TP | before the end | late | latest ms | hidden | reported |
|---|---|---|---|---|---|---|---|
"""

FOOT = """
- `event`: a layer leaves one wake-up and one submission behind its kernels; the last layer's push is all that shows.
- `stream`: as early, but the model thread waits for each layer, so the host launches nothing ahead: here the pass takes 11 ms longer.
- `forward`: everything leaves after the pass.
- A prompt reserved at 60 ms cannot be hidden better than the 40 ms that are left: the optimum is 0.40.
- Behind a prefix hit the link has twice the device's work: it is never idle, and the layers queue.
- A preempted prompt's layers stop leaving with the preemption; what was submitted is waited for, and the transfer ends clean.
- A drafter's layer has no hook of its own: it leaves with the end of the step. C does not count it, so its computing shows in *hidden*.

Before the waiter, the sender waited for each event itself: in the first case 3 of 32 layers left before the end and the transfer took 157 ms beyond the
pass (hidden −0.56), while the worker reported 0.96. With TP 2 its waits for rank 1 were made on device 0
([decision 37](../decisions/0037-one-waiter.md)).
"""


@cache
def results(name: str, policy: str, tp: int) -> tuple[RankResult, ...]:
    return tuple(run(replace(SCENARIOS[name], policy=policy, tp=tp)))


def page() -> str:
    return HEAD + "\n".join(_picture()) + "\n" + TABLE + "\n".join(_rows()) + "\n" + FOOT


def lateness_ms(result: RankResult) -> float:
    """Return the longest that a layer's last push left behind its being written, ms."""
    return max(((layer.left[-1] - layer.written[-1]) * 1e3 for layer in result.layers if layer.left), default=0.0)


def _picture() -> Iterator[str]:
    yield "| ms | " + " | ".join(str(at) for at in PICTURE_MS) + " |"
    yield "|---" * (len(PICTURE_MS) + 1) + "|"
    shown = {policy: results("one chunk", policy, 1)[0] for policy in POLICIES}
    yield _counts("computed", [layer.written[-1] for layer in shown["event"].layers])
    for policy, result in shown.items():
        yield _counts(f"left, `{policy}`", [layer.left[-1] for layer in result.layers])


def _counts(name: str, instants: list[float]) -> str:
    return f"| {name} | " + " | ".join(str(sum(at * 1e3 <= limit for at in instants)) for limit in PICTURE_MS) + " |"


def _rows() -> Iterator[str]:
    for name, policy, tp in CELLS:
        ranks = results(name, policy, tp)
        worst = min(ranks, key=lambda rank: rank.hidden_share if rank.hidden_share is not None else rank.before_the_end)
        left = sum(bool(layer.left) for layer in worst.layers[: worst.targets])
        late = left - worst.before_the_end
        hidden, reported = worst.hidden_share, worst.outcome.get("hidden_share")
        figures = [_share(hidden), _share(reported)]
        latest = "–" if hidden is None else f"{lateness_ms(worst):.2f}"
        yield (
            f"| {name} | `{policy}` | {tp} | {worst.before_the_end} of {worst.targets} | {late} "
            f"| {latest} | {figures[0]} | {figures[1]} |"
        )


def _share(share: float | None) -> str:
    return "–" if share is None else f"{round(share, 2) + 0.0:.2f}"


if __name__ == "__main__":
    PAGE.write_text(page())
