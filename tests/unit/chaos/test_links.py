from tests.chaos.links import rules_for
from tests.chaos.schedule import Way


def test_each_channel_is_cut_alone_by_its_ports() -> None:
    """Data at the decode nodes' ports, control at the prefill nodes'."""
    data, control = rules_for(Way.DROP_DATA, ["40000"]), rules_for(Way.DROP_CONTROL, ["40000", "40001"])

    assert "tcp dport 15000-17999 drop" in data
    assert "40000" not in data
    assert "tcp sport { 40000, 40001 } drop" in control
    assert "tcp dport { 40000, 40001 } drop" in control
