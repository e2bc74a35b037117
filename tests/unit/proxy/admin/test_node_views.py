import itertools

import pytest

from baton.proxy.admin.node_views import joined, leaving, view
from baton.proxy.nodes.node import State
from baton.proxy.nodes.views import LeavingView, NodeView
from tests.unit.proxy.members import node


def seen(**changes: object) -> NodeView:
    return view(node("decode")).model_copy(update=changes)


def test_what_is_in_flight_adds_up() -> None:
    """Each worker knows its own, and perhaps nodes that the others do not know yet."""
    mine = [seen(requests=2, prompt_bytes=10)]
    theirs = [seen(requests=3, prompt_bytes=5, breaker_openings=1), seen(url="http://new")]

    found, new = joined([mine, theirs])

    assert (found.requests, found.prompt_bytes, found.breaker_openings) == (5, 15, 1)
    assert new.url == "http://new"


def test_what_the_other_workers_have_is_not_others() -> None:
    """To one worker all of that is others'; seen from outside only the rest is."""
    mine, theirs = seen(requests=2, other_requests=5), seen(requests=3, other_requests=4)

    assert joined([[mine], [theirs]])[0].other_requests == 2
    assert joined([[seen(requests=9)], [seen(requests=1)]])[0].other_requests == 0


@pytest.mark.parametrize(
    ("states", "worst"),
    [
        ((State.READY, State.ISOLATED), State.ISOLATED),
        ((State.READY, State.DOWN, State.UNREADY), State.DOWN),
        ((State.UNKNOWN, State.READY), State.READY),
    ],
)
def test_the_worst_state_counts_whichever_worker_is_asked(states: tuple[State, ...], worst: State) -> None:
    """With its reason. A worker that has just started knows nothing, and that is no trouble."""
    for order in itertools.permutations(states):
        (found,) = joined([[seen(state=state, reason=f"because {state}")] for state in order])
        assert (found.state, found.reason) == (worst, f"because {worst}")


def test_nodes_on_their_way_out_have_the_requests_of_all_workers() -> None:
    """They may be stopped when no worker has any."""
    one = LeavingView(role="decode", url="http://n", slot=1, requests=2)

    assert [each.requests for each in leaving([[one], [], [one]])] == [4]
