"""Every interleaving of the hand-off, up to a bound.

The real `Producer` and `Consumer` are driven through losses, duplicates, reordering, late writes, crashes, restarts,
cancels, preemptions and time-outs, and the invariants I2 to I5 are looked at in every state.

    freeze.py    turns a machine into a value that can be compared, and stills its clock
    prefill.py   one prefill process: machine, scheduler, sender, source block
    decode.py    one decode process: machine, scheduler, receiving engines, destination block
    local.py     runs a side once per (state, event) and remembers what came of it
    scope.py     what may go wrong in one run; budget.py counts it, suite.py lists the scopes that are run
    network.py   messages under way
    writes.py    one-sided writes under way
    world.py     both sides, the network and the writes under way: which events can happen, what they lead to
    explore.py   breadth first over all states; then whether each of them comes to rest when nothing bad happens any more
    rest.py      the second half of that
    words.py     a trace that a person can read
    mutants.py   machines with one guard taken out: the explorer must find each

`python -m tests.explorer --help` runs it.
"""
