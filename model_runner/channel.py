"""What a worker and the node that launched it agree on."""

from typing import Final

RUNNER_SOCKET: Final = "runner.sock"  # in an engine's folder; answers `b"snapshot"` with a report
RUNTIME_DIR_VARIABLE: Final = "BATON_RUNTIME_DIR"  # the node's folder; unset in a server that is no node
AUDIT_VARIABLE: Final = "BATON_SYNC_AUDIT"  # 1: count what makes the model thread wait
STEP_TIMEOUT_VARIABLE: Final = "BATON_STEP_TIMEOUT_S"  # how long a call of a step may take, in seconds
