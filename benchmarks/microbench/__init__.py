"""What the connector itself costs: the planner, the hooks, the way of the bytes, the sender's CPU. No model is run.

Run it with `python -m benchmarks.microbench`. Each part runs in a process of its own, forked from one that has imported what
all of them need, and yields figures, which are printed as they come.

    __main__   command line, order of the parts, output
    children   starts a part's process and that of the receiver opposite it
    rank       a real prefill rank, opposite a decode rank that is only played
    planner, hooks, pushes, sender_cpu   the parts
    figures    from samples to figures, and how they are shown; pure
"""
