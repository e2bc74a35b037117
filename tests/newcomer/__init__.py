"""The newcomer's path, walked and timed: the README's own commands, from a clone to tokens, on a machine that has nothing yet.

    python -m tests.newcomer                    # a clean Debian, made with debootstrap; root
    python -m tests.newcomer --machine here     # this machine, with an empty home folder

`readme` finds the commands, `machines` has where they run, `journey` walks, `figures` says what came of it.
"""
