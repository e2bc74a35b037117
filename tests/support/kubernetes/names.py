"""The cluster's name server: a headless Service's name stands for the addresses of its ready pods; answers are kept for a while."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tests.support.composed.resolver import ADDRESS

DOMAIN: Final = "svc.cluster.local"


def resolv_conf(namespace: str) -> str:
    """Return what kubelet writes for a pod, but for the name server's address, which is in the pod itself here."""
    search = f"{namespace}.{DOMAIN} {DOMAIN} cluster.local"
    return f"search {search}\nnameserver {ADDRESS[0]}\noptions ndots:5 timeout:1 attempts:3\n"


class Names(Mapping[str, Sequence[str]]):
    """Full name → addresses, as old as a cache lets them be. Threads of several resolvers look here."""

    def __init__(self, services: Mapping[str, Callable[[], Sequence[str]]], namespace: str, cached_s: float) -> None:
        """Take Services' names and what says their addresses now."""
        self._now = {f"{name}.{namespace}.{DOMAIN}": addresses for name, addresses in services.items()}
        self._cached_s = cached_s
        self._kept: dict[str, tuple[float, Sequence[str]]] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Sequence[str]:
        with self._lock:
            asked_s, addresses = self._kept.get(name, (float("-inf"), ()))
            if time.monotonic() - asked_s > self._cached_s:
                addresses = self._now[name]()
                self._kept[name] = time.monotonic(), addresses
            return addresses

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)
