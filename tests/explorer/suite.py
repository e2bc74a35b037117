"""The scopes that are explored together: all faults at once would multiply what each of them shows alone."""

from tests.explorer.scope import Scope

QUICK = {
    "network": Scope(faults=2, crashes_p=0, crashes_d=0, silences=0),
    "crash": Scope(faults=2, losses=1, duplicates=0, silences=0, asks_again=False),
    "silence": Scope(faults=1, losses=0, duplicates=0, crashes_p=0, crashes_d=0),
    "digests": Scope(faults=1, losses=0, duplicates=0, verify=True, asks_again=False),
}
DEFAULT = {
    "network": Scope(faults=3, crashes_p=0, crashes_d=0, silences=0),
    "crash": Scope(faults=3, losses=1, duplicates=0, silences=0, asks_again=False),
    "silence": Scope(faults=2, losses=1, duplicates=0, crashes_p=0, crashes_d=0),
    "same id": Scope(faults=1, losses=0, duplicates=0, crashes_p=0, silences=0),
}
DEEP = DEFAULT | {
    "crash and silence": Scope(faults=2, losses=0, duplicates=0, asks_again=False),
    "crash and network": Scope(faults=3, silences=0, asks_again=False),
    "two layers": Scope(faults=1, layers=2, asks_again=False),
    "beats among others": Scope(faults=1, crashes_p=0, crashes_d=0, silences=0, beat_among=1),
    "same id after a loss": Scope(faults=2, losses=1, duplicates=0, crashes_p=0, silences=0),
}
SUITES = {"quick": QUICK, "default": DEFAULT, "deep": DEEP}
