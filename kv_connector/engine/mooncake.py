"""The Mooncake transfer engine behind our Protocols: starting it, and destroying it as the fence.

TCP, protocol v2 only: version 1 is refused at both ends, by `prepare_environment` where it could be forced and in
`MooncakeFactory.receiver` by what our own engine announces. RDMA and others start here but have never been run.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from baton.kv_connector.engine.greeting import PeerReachability
from baton.kv_connector.engine.mooncake_environment import port_range, prepare_environment
from baton.kv_connector.engine.mooncake_listener import Announcement, ask, shorten_accept
from baton.kv_connector.engine.mooncake_sender import MooncakeSender
from baton.kv_connector.engine.port_memory import PortMemory
from baton.kv_connector.engine.spans import Spans
from baton.kv_connector.errors import EngineError
from baton.kv_connector.layout.regions import Span

_ATTEMPTS = 32  # engines made in search of ports that were not used lately; a quarter of all were, so that two suffice
_KEPT_SHARE = 4  # one port in so many is kept from new receivers: of 2,000, those of the last 250


class MooncakeReceiver:
    """See `ReceivingEngine`: one fence domain."""

    def __init__(self, engine: Any, session: str, closed: Callable[[], None] | None = None) -> None:
        """`closed` is called once, when the engine has been destroyed."""
        self._engine = engine
        self._alive = weakref.ref(engine)
        self._session = session
        self._closed = closed or _do_nothing
        self._lock = threading.Lock()

    @property
    def session(self) -> str:
        return self._session

    @property
    def is_gone(self) -> bool:
        return self._alive() is None

    def close(self) -> None:
        """See `ReceivingEngine.close`. Takes 20 to 60 ms, a second where `shorten_accept` finds nothing.

        Unregistering the memory instead would not fence: a write under way goes on (E3). `EngineError`: something else
        holds on to the engine, so it lives on and nothing has been fenced.
        """
        with self._lock:  # a second caller returns only when the engine is gone as well
            self._engine = None
            if not self.is_gone:
                gc.collect()
            if not self.is_gone:  # also on a second call: it is not fenced until it is gone
                raise EngineError(f"the receiving engine {self._session} is still in use and was not destroyed")
            closed, self._closed = self._closed, _do_nothing
            closed()


def _do_nothing() -> None:
    pass


class MooncakeFactory:
    """Makes engines that talk to each other directly, without a metadata server (`P2PHANDSHAKE`)."""

    def __init__(
        self,
        *,
        host: str,
        protocol: str = "tcp",
        max_in_flight: int = 1024,
        push_timeout_s: float = 10.0,
        ports: PortMemory | None = None,
        enter_device: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the environment; engines are made later. Raises `ConnectorConfigError` as `prepare_environment` does.

        Args:
            host: Address at which peers reach this process's memory.
            protocol: Mooncake's transport; any of its devices.
            max_in_flight: Writes in flight per target, over all pushes.
            push_timeout_s: A push that has not ended by then is given up, whatever Mooncake says of it.
            ports: Ports that engines must not get, those of processes before this one included; a sender that was
                stopped in a push may still write to them. A new receiver's are added, and once more when it is closed.
                `None`: those of this factory alone.
            enter_device: Makes the device current in the thread that calls it; on an NPU Mooncake asks for it.
        """
        prepare_environment(host, protocol)
        self._host = host
        self._protocol = protocol
        self._max_in_flight = max_in_flight
        self._push_timeout_s = push_timeout_s
        self._ports = ports or PortMemory()
        self._enter_device = enter_device
        self._made: list[MooncakeSender | MooncakeReceiver] = []

    def sender(self, spans: Sequence[Span]) -> MooncakeSender:
        """See `EngineFactory.sender`. It listens too, and its memory can be written to: it gets none of a receiver's late writes."""
        engine, _ = self._start_elsewhere()
        sender = MooncakeSender(
            engine,
            self._register(engine, spans),
            max_in_flight=self._max_in_flight,
            push_timeout_s=self._push_timeout_s,
            answered=PeerReachability(ask).answered,
        )
        self._made.append(sender)
        return sender

    def receiver(self, spans: Sequence[Span]) -> MooncakeReceiver:
        """See `EngineFactory.receiver`."""
        engine, announced = self._start_elsewhere()
        if self._protocol == "tcp" and announced.tcp_version < 2:
            raise EngineError("this Mooncake speaks TCP protocol 1, which acknowledges writes too early; update it")
        self._register(engine, spans)
        remember = partial(self._ports.add, _ports_of(engine, announced), len(port_range()) // _KEPT_SHARE)
        remember()
        receiver = MooncakeReceiver(engine, self._session(engine), remember)
        living = [one for one in self._made if isinstance(one, MooncakeSender) or not one.is_gone]
        self._made = [*living, receiver]
        return receiver

    def close(self) -> None:
        while self._made:
            self._made.pop().close()

    def _start_elsewhere(self) -> tuple[Any, Announcement]:
        """Start an engine that has none of the ports that receivers of this machine had last."""
        for _ in range(_ATTEMPTS):
            engine, announced = self._start()
            if not _ports_of(engine, announced) & self._ports.recent():
                return engine, announced
            del engine
        drawn_from = port_range()
        raise EngineError(
            f"no port for an engine in {_ATTEMPTS} attempts: {len(self._ports.recent())} of the {len(drawn_from)} "
            f"from {drawn_from.start} on (MC_MIN_RPC_PORT, MC_MAX_RPC_PORT) were used by others lately"
        )

    def _start(self) -> tuple[Any, Announcement]:
        from mooncake.engine import TransferEngine

        self._enter_device()
        engine = TransferEngine()
        if status := engine.initialize(self._host, "P2PHANDSHAKE", self._protocol, ""):
            raise EngineError(f"Mooncake does not start ({self._protocol} on {self._host}): {status}")
        shorten_accept(engine.get_rpc_port())
        announced = ask(self._host, engine.get_rpc_port())
        if announced.transport not in ("", self._protocol):
            raise EngineError(
                f"transfer.protocol is {self._protocol!r}, but Mooncake chose {announced.transport!r}: it takes TCP where "
                "it finds no card, and only what its wheel was built with"
            )
        return engine, announced

    @staticmethod
    def _register(engine: Any, spans: Sequence[Span]) -> Spans:
        checked = Spans(spans)
        if status := engine.batch_register_memory(checked.addresses, checked.lengths):
            raise EngineError(f"Mooncake does not register {sum(checked.lengths)} B of KV cache: {status}")
        return checked

    def _session(self, engine: Any) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{engine.get_rpc_port()}"


def _ports_of(engine: Any, announced: Announcement) -> set[int]:
    return {engine.get_rpc_port(), announced.data_port} - {0}
