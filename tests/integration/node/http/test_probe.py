"""Probes as nodes carry them out: real engines in child processes, real control sockets."""

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator

import pytest
import zmq

from baton.contracts.probe import MIB, Place, Push, Receive
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.sockets import ControlServer
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan
from baton.node.http import probe
from baton.node.http.probe_engines import MAX_RECEIVERS, ProbeBusyError, ProbeEngines, ProbeError

PLACE = Place(host="127.0.0.1", protocol="tcp")
SECRET = ClusterSecret(b"the secret of this cluster")
OTHER = ClusterSecret(b"the secret of another one")


@pytest.fixture
async def engines() -> AsyncIterator[ProbeEngines]:
    made = ProbeEngines(PLACE)
    yield made
    await made.stop()


def push_to(session: str, address: int, idle_s: float = 0) -> Push:
    return Push(session=session, address=address, size_bytes=MIB, idle_s=idle_s)


async def test_one_engine_pushes_into_another(engines: ProbeEngines) -> None:
    """Each in a process of its own, over TCP."""
    target = await engines.receive(Receive(seconds=60))

    found = await engines.push(push_to(target.session, target.address))

    assert found.problem == ""
    assert found.after_idle_s is not None
    assert await engines.release(target.session)
    assert not await engines.release(target.session)


async def test_a_push_to_one_that_has_gone_says_so(engines: ProbeEngines) -> None:
    """The process of the receiver has ended, and its ports are closed."""
    target = await engines.receive(Receive(seconds=60))
    await engines.release(target.session)

    assert "failed" in (await engines.push(push_to(target.session, target.address))).problem


async def test_a_receiver_ends_by_itself(engines: ProbeEngines) -> None:
    """A doctor that was killed leaves nothing behind."""
    target = await engines.receive(Receive(seconds=0.1))

    while not probe._greet(target.session).problem:  # noqa: ASYNC110  # another process ends
        await asyncio.sleep(0.05)


async def test_probes_at_once_are_limited(engines: ProbeEngines) -> None:
    """Receivers by their number; of pushes there is one."""
    targets = [await engines.receive(Receive(seconds=60)) for _ in range(MAX_RECEIVERS)]
    with pytest.raises(ProbeBusyError):
        await engines.receive(Receive(seconds=60))
    pushing = asyncio.create_task(engines.push(push_to(targets[0].session, targets[0].address, idle_s=60)))
    await asyncio.sleep(0)

    with pytest.raises(ProbeBusyError):
        await engines.push(push_to(targets[1].session, targets[1].address))
    pushing.cancel()
    await asyncio.gather(pushing, return_exceptions=True)
    await engines.release(targets[0].session)

    target = await engines.receive(Receive(seconds=60))
    assert (await engines.push(push_to(target.session, target.address))).problem == ""


async def test_an_engine_that_does_not_start_gives_its_reason() -> None:
    """A setting of Mooncake's that we refuse."""
    engines = ProbeEngines(PLACE, {**os.environ, "MC_TCP_PROTO": "1"})

    with pytest.raises(ProbeError, match="MC_TCP_PROTO=1 must not be set"):
        await engines.receive(Receive(seconds=60))


async def test_a_greeting_leaves_an_engine_that_serves_as_it_was() -> None:
    """Asked and dialled again and again, it still takes what is pushed."""
    memory = ctypes.create_string_buffer(2 * MIB)
    start = ctypes.addressof(memory)
    factory = MooncakeFactory(host="127.0.0.1")
    receiver, sender = factory.receiver([(start, 2 * MIB)]), factory.sender([(start, 2 * MIB)])
    memory.raw = b"\1" * MIB + bytes(MIB)
    try:
        for _ in range(20):
            assert (await asyncio.to_thread(probe._greet, receiver.session)).problem == ""
        push = sender.submit(receiver.session, CopyPlan.of([Copy(start, start + MIB, MIB)]))
        while (ok := push.poll()) is None:  # noqa: ASYNC110  # Mooncake tells when it is asked
            await asyncio.sleep(0.001)
    finally:
        factory.close()

    assert ok
    assert memory.raw == b"\1" * 2 * MIB


async def test_a_control_port_lets_in_who_has_the_secret() -> None:
    """A handshake, and not a message."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = ControlServer("127.0.0.1", 0, SECRET, context)
    try:
        let_in, refused = await asyncio.gather(
            asyncio.to_thread(probe._dial, server.address, SECRET, context),
            asyncio.to_thread(probe._dial, server.address, OTHER, context),
        )
        messages = list(server.receive(10))
    finally:
        server.close()
        context.destroy(linger=0)

    assert let_in.problem == ""
    assert refused.refused
    assert "another cluster secret" in refused.problem
    assert messages == []


async def test_a_control_port_without_a_listener_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is another fault, with another fix."""
    monkeypatch.setattr(probe, "DIAL_TIMEOUT_S", 0.2)

    with zmq.Context[zmq.Socket[bytes]]() as context:
        found = await asyncio.to_thread(probe._dial, "tcp://127.0.0.1:1", SECRET, context)

    assert "nobody answers" in found.problem
    assert not found.refused
