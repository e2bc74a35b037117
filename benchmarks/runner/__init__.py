"""What Baton's model runner costs beside the engine's own: the same streams on two servers, by turns.

Run it with `python -m benchmarks.runner`. A third server runs the engine's own runner as well: what its ratio differs from
1 is this machine's, not a runner's. On a CPU there is nothing to gain, since tokens lie on the host when they are sampled.

    __main__   command line, servers, order of the rounds, output
    figures    from rounds to a ratio with an interval; pure
"""
