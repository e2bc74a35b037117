from tests.chaos.crowd import Member, in_flight_at
from tests.chaos.workload import Reference

REFERENCE = Reference(prompt=(1, 2), tokens=(5, 6), logprobs=(-0.1, -0.2))


def member(began_s: float, ended_s: float) -> Member:
    """A request that began and ended then; 0: not."""
    made = Member("model", REFERENCE, 2, stream=False)
    made.exchange.began_s, made.exchange.ended_s = began_s, ended_s
    return made


def test_requests_under_way_at_a_moment_had_begun_and_not_ended() -> None:
    """Those that were never sent, had ended or came later are not among them."""
    members = [member(0.0, 0.0), member(1.0, 2.0), member(1.0, 4.0), member(3.5, 5.0), member(2.0, 0.0)]

    assert in_flight_at(members, 3.0) == [members[2], members[4]]
