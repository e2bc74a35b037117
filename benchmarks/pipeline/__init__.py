"""What asynchronous transfers between pipeline stages are worth: the same load on the same stages, in each way.

Run it with `python -m benchmarks.pipeline`. It needs root, for a network namespace whose loopback it can slow down: what
two stages in it send each other over gloo takes that loopback, as if they were on two machines; clients do not.

    __main__   command line, order of the rounds, output
    servers    one server per way, all on the same two cores
    figures    from a round's tokens to figures, from rounds to ratios; pure
"""
