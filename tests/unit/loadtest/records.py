"""Records for tests."""

from typing import Any

from baton.loadtest.measures.record import Record


def record(started_s: float = 0.0, ttft_s: float = 0.1, gaps: tuple[float, ...] = (0.02, 0.02), **more: Any) -> Record:
    """A completed request with as many tokens as the gaps say."""
    latency = ttft_s + sum(gaps)
    values: dict[str, Any] = {
        "index": 0,
        "started_s": started_s,
        "ended_s": started_s + latency,
        "ttft_s": ttft_s,
        "latency_s": latency,
        "itls_s": gaps,
        "input_tokens": 10,
        "output_tokens": len(gaps) + 1,
        "asked_output_tokens": len(gaps) + 1,
        "status": 200,
    }
    return Record(**{**values, **more})


def failed(error: str, started_s: float = 0.0, **more: Any) -> Record:
    """A request that came to nothing after a tenth of a second."""
    return Record(**{"index": 0, "started_s": started_s, "ended_s": started_s + 0.1, "error": error, **more})
