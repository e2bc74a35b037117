from dataclasses import dataclass

from proxy.choose import LeastPromptWork, LeastRequests, Work


@dataclass
class Candidate:
    """A node as a policy sees it."""

    requests: int = 0
    prompt_bytes: int = 0


def test_least_prompt_work_looks_at_bytes_before_requests() -> None:
    """One long prompt outweighs several short ones."""
    long, short = Candidate(1, 10_000), Candidate(3, 300)

    assert LeastPromptWork().choose(Work(10, 0), [long, short]) is short


def test_least_requests_looks_at_requests_before_bytes() -> None:
    """Decode nodes are ranked by how many sequences they run."""
    few, many = Candidate(1, 10_000), Candidate(3, 300)

    assert LeastRequests().choose(Work(10, 0), [many, few]) is few


def test_idle_nodes_take_turns() -> None:
    """Equal candidates are chosen one after the other, not always the first."""
    nodes = [Candidate(), Candidate(), Candidate()]

    chosen = [LeastRequests().choose(Work(1, turn), nodes) for turn in range(3)]

    assert {id(node) for node in chosen} == {id(node) for node in nodes}
