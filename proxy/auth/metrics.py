"""What is counted by key. A name is a label only if it is in the file; what strangers show never is."""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge

from baton.proxy.auth.errors import Denial


class AccessMetrics:
    """The series of one proxy that asks for keys."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "baton_key_requests", "Requests that an API key let in, by its name", ("key",), registry=registry
        )
        self._refusals = Counter(
            "baton_access_refusals",
            "Requests refused for their API key, by its name (empty: none was recognised) and reason",
            ("key", "reason"),
            registry=registry,
        )
        self._broken = Gauge(
            "baton_api_keys_file_broken",
            "Workers that go on with former API keys because the file cannot be used",
            registry=registry,
        )
        self._requests_of = cache(self._requests.labels)  # finding a series costs more than counting

    def let_in(self, name: str) -> None:
        self._requests_of(name).inc()

    def refused(self, name: str, denial: Denial) -> None:
        self._refusals.labels(name, denial).inc()

    def file_is_broken(self, is_broken: bool) -> None:
        self._broken.set(is_broken)
