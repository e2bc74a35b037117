"""When a load generator was itself the limit."""

from typing import Final

BUSY_SHARE: Final = 0.85  # of the one core that an event loop can use
LATE_S: Final = 0.02


def saturation(cpu_s: float, wall_s: float, lag_p99_s: float) -> str:
    """Say why the client may have been the limit; nothing if it was not."""
    share = cpu_s / wall_s if wall_s else 0.0
    if share >= BUSY_SHARE:
        return f"the client was saturated: it used {share:.0%} of a core, so the figures are its own as much as the server's"
    if lag_p99_s >= LATE_S:
        late = f"{lag_p99_s * 1000:.0f} ms"
        return f"the client was late: 1 % of its wake-ups came {late} or more after their time, and figures are off by as much"
    return ""
