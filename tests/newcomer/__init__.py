"""The newcomer's path, walked and timed: the README's own commands, from a clone to tokens, on a machine that has nothing yet.

    python -m tests.newcomer    # clean Debians, made with debootstrap; root

`readme` finds the commands, `machines` has where they run, `journey` walks, `figures` says what came of it.
"""
