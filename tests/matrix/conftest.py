"""One stack and one reference for all cells."""

from collections.abc import Iterator

import pytest

from baton.deploy.forkserver import ForkServer
from tests.e2e.stack import Stack, stack_on
from tests.matrix.trial import Reference, reference_from

# What is asked is whether hand-overs are exact, not whether a push is fast enough where eight ranks share two cores.
PATIENT = {
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "20",
    "MC_TCP_STATUS_TIMEOUT_SEC": "20",
    "MC_TRANSFER_TIMEOUT": "20",
    "BATON_PROXY_PROBE_TIMEOUT_S": "20",
}


@pytest.fixture(scope="session")
def stack(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Every server of it is stopped at the session's end."""
    with stack_on(forkserver, tmp_path_factory.mktemp("matrix"), env=PATIENT) as running:
        yield running


@pytest.fixture(scope="session")
def reference(stack: Stack) -> Reference:
    """What one plain server answers."""
    return reference_from(stack)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many cells there were, and how long each took."""
    ran = [
        (report.head_line or report.nodeid, report.outcome, report.duration)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call" and "tests/matrix/" in report.nodeid
    ]
    if not ran:
        return
    terminalreporter.section("cells of the matrix")
    for name, outcome, seconds in ran:
        terminalreporter.write_line(f"{outcome:<7} {seconds:6.1f} s  {name}")
    exact = sum(outcome == "passed" for _, outcome, _ in ran)
    terminalreporter.write_line(
        f"{len(ran)} cells, {exact} exact, {sum(each[2] for each in ran):.0f} s, the one plain server not counted"
    )
