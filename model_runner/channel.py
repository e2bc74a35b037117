"""What a worker and the node that launched it agree on."""

from typing import Final

RUNNER_SOCKET: Final = "runner.sock"  # in the node's runtime directory; answers `b"snapshot"` with a report
RUNNER_SOCKET_VARIABLE: Final = "BATON_RUNNER_SOCKET"  # its whole path; unset in a server that is no node
AUDIT_VARIABLE: Final = "BATON_SYNC_AUDIT"  # 1: count what makes the model thread wait
