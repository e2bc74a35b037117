"""The hand-off's real state machines, explored to the end.

The real `Producer` and `Consumer`, joined by `FanOut` and `Gather`, are driven through losses, duplicates, reordering, late writes, crashes, restarts,
cancels, preemptions and time-outs, and the invariants I1 to I5 and I8 are looked at in every state.

    freeze.py    turns a machine into a value that can be compared, and stills its clock
    prefill.py   one prefill rank's process: machine, scheduler, sender, source blocks
    decode.py    one decode rank's process: machine, scheduler, receiving engines, destination blocks
    rank.py      what local.py asks of either
    both_ways.py scenes of two nodes that send and receive; node.py: such a node, with the product's sides of scheduler and worker
    played_vllm.py  what such a node has of vLLM; workers.py: its workers, without threads and sockets
    local.py     runs a side once per (state, event) and remembers what came of it
    writes.py    one-sided writes under way
    sides.py     all processes and the writes: what each may do next
    scene.py     what is played; suite.py lists the scenes that are run

    anything.py  the sides and a network that may do anything
    exhaust.py   all states of that
    rest.py      whether each state comes to rest, and without a time-out where a beat can do

    words.py     a trace that a person can read
    mutants.py   machines with one guard taken out (mutants_repair.py: those that remember what they said; mutants_both_ways.py: nodes): the explorer must find each

`python -m tests.explorer --help` runs it.
"""
