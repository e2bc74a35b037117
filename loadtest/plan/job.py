"""One request on its way through the simulated nodes."""

from baton.loadtest.plan.demand import Demand


class Job:
    """Where it is. Written by the nodes that have it."""

    __slots__ = (
        "begun",
        "behind",
        "beside",
        "cached",
        "computed",
        "context",
        "decode",
        "demand",
        "ends_at_step",
        "first_at",
        "last_at",
        "prefill",
        "reserved",
        "unsent",
    )

    def __init__(self, demand: Demand, prefill: int, decode: int) -> None:
        """Begin; `prefill` and `decode` are the nodes that it was given."""
        self.demand = demand
        self.prefill = prefill
        self.decode = decode
        self.behind = 0  # prompts that P had, when this one came
        self.cached = 0  # tokens that P's prefix cache had
        self.computed = 0  # tokens of the prompt that P has
        self.unsent = 0  # tokens whose KV waits for room on D
        self.begun = False  # P had begun it before D had room for it
        self.reserved = False  # D has room for it
        self.ends_at_step = 0  # of D
        self.first_at = 0.0
        self.last_at = 0.0
        self.beside = 0  # sequences that D's batch had, when it joined
        self.context = 0  # tokens when it joined D's batch
