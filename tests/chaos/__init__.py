"""Chaos on the real stack: clients leave, processes are killed or stopped, links are cut, at moments that are known.

    python -m tests.chaos --seconds 600 --seed 1

Two prefill nodes, two decode nodes and the proxy, with pools so tight that requests are preempted. Every answered token
is compared with a plain float32 server's, every block must come back, and every client must get the exact answer or a
typed error within its bound. The matrix that is printed at the end is `docs/failures.md`.

`phases` says what is meant by a moment and how it is verified, `schedule` draws the faults from a seed, `storm` (clients
that leave) and `trial` (kills, stalls, cuts) act, `verdict` and `ledger` judge, `matrix` reports.
"""
