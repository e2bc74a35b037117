"""Has anything become slower? Ratios only, in one run of a few minutes, beside a stored baseline.

Run it with `make bench-quick`. Each figure is a ratio of two things that are measured in turn on the same machine, so that a
slower machine moves both. A person decides what a difference means: nothing here fails because of one.

    __main__    command line, order of the parts, what is printed and stored
    ratios      samples → figures, and figures beside the baseline's; pure
    proxy       the proxy's CPU ÷ a featureless relay's, on mock engines
    connector   hooks and planner ÷ a loop that never changes; in a process of its own
    first_token the first token of a prefill and a decode node behind the proxy ÷ that of a plain server
"""
