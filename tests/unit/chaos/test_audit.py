"""What counts as a finding."""

from tests.chaos.audit import damages_of, findings_of, verified_by
from tests.chaos.ledger import NodeState


def state(**totals: int) -> NodeState:
    """A node with these totals."""
    return NodeState(free_blocks=0, num_blocks=0, open_transfers=0, totals=totals)


def test_a_node_whose_views_agree_and_always_did_is_no_problem() -> None:
    """It has looked, and found nothing."""
    assert findings_of("d0", {"ok": True, "integrity_findings": 0, "findings": []}) == []


def test_a_finding_that_has_gone_is_still_one() -> None:
    """It was found before the node idled, and nobody asked then."""
    [problem] = findings_of("d0", {"ok": True, "integrity_findings": 2, "findings": []})

    assert problem.startswith("d0: 2 integrity findings")


def test_kv_that_differs_or_could_not_be_compared_is_a_problem() -> None:
    """Nodes where all was equal are only counted."""
    nodes = {"p0": state(), "d0": state(verified=7), "d1": state(verified=2, mismatched=1, unverifiable=3)}

    assert damages_of(nodes) == ["d1: 1 transfers mismatched", "d1: 3 transfers unverifiable"]
    assert verified_by(nodes) == 9
