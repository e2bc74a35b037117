"""The late device ends each operation when a real one would at the earliest, and charges waits and launches for it."""

from collections.abc import Callable
from functools import partial
from math import inf
from types import ModuleType
from typing import Any

import pytest

from tests.support.late_device import DeviceError, LateDevice, LateEvent, LateTorch
from tests.support.virtual_host import RealHost, VirtualHost

MS = 1e-3


def instant(host: VirtualHost, origin_s: float) -> float:
    """How much virtual time has passed, ms."""
    return round((host.now() - origin_s) * 1e3, 6)


def test_late_device_launches_run_ahead_of_execution() -> None:
    """32 layers launched in 10 ms take 100 ms; events say when each was passed, and a wait costs a wake-up."""
    with VirtualHost() as host:
        device = LateDevice(host, launch_s=10 * MS / 32, record_s=0, query_s=0, wake_s=0.05 * MS)
        stream, begun, ran = device.stream(blocking=False), host.now(), list[int]()
        first = stream.record_event()
        events = []
        for layer in range(32):
            stream.launch(partial(ran.append, layer), cost_s=100 * MS / 32)
            events.append(stream.record_event())

        assert instant(host, begun) == pytest.approx(10)
        assert [event.query() for event in events[:4]] == [True, True, True, False]
        assert ran == [0, 1, 2]
        events[15].synchronize()
        assert ran == list(range(16))
        assert first.elapsed_time(events[-1]) == pytest.approx(100 + 10 / 32)
        assert instant(host, begun) == pytest.approx(50 + 10 / 32 + 0.05)
        assert device.waits.total() == 1


@pytest.mark.parametrize(("blocking", "expected_ms"), [(True, 12), (False, 2)])
def test_late_device_legacy_default_stream_waits_for_blocking_streams(blocking: bool, expected_ms: float) -> None:
    """A synchronous copy queues behind everything launched to blocking streams, and holds up what comes after."""
    with VirtualHost() as host:
        device = LateDevice(host, launch_s=0, record_s=0, wake_s=0, copy_bytes_per_s=1e9)
        stream, begun = device.stream(blocking=blocking), host.now()
        stream.launch(cost_s=10 * MS)

        device.copy_and_wait(2_000_000, "to device")

        assert instant(host, begun) == pytest.approx(expected_ms)
        device.default_stream.launch(cost_s=20 * MS)
        stream.launch(cost_s=1 * MS)
        behind = device.default_stream.end + 1 * MS if blocking else None
        assert behind is None or stream.end == pytest.approx(behind)


def test_late_device_a_stream_waits_for_an_event_of_another() -> None:
    """What had been recorded when the wait was issued, and no more."""
    with VirtualHost() as host:
        device = LateDevice(host, launch_s=0, record_s=0, parallel=2)
        one, two = device.stream(blocking=False), device.stream(blocking=False)
        start = one.record_event()
        one.launch(cost_s=2 * MS)
        two.wait_event(one.record_event())
        one.launch(cost_s=9 * MS)
        two.launch(cost_s=1 * MS)

        assert start.elapsed_time(two.record_event()) == pytest.approx(3)


def test_late_device_notices_a_thread_that_has_not_set_its_device() -> None:
    """A new thread's device is number 0, whatever its maker's is."""
    with VirtualHost() as host:
        device = LateDevice(host, index=1)
        device.enter()
        event = device.stream().record_event()

        def wait(*, enters: bool) -> None:
            if enters:
                device.enter()
            event.synchronize()

        for enters in (False, True):
            thread = host.thread(partial(wait, enters=enters), f"enters {enters}")
            thread.start()
            thread.join()

        assert device.strays == {"enters False": 1}


def test_late_device_that_hangs_lets_a_wait_hang_until_it_is_lost() -> None:
    """What had ended stays so; what had not never does, and a query of it does not raise."""
    with VirtualHost() as host:
        device, raised = LateDevice(host), list[str]()
        stream = device.stream()
        stream.launch(cost_s=1 * MS)
        done = stream.record_event()
        host.sleep(2 * MS)
        stream.launch(cost_s=1 * MS)
        never = stream.record_event()
        device.hang()

        def wait() -> None:
            with pytest.raises(DeviceError):
                never.synchronize()
            raised.append("lost")

        waiter = host.thread(wait)
        waiter.start()
        host.sleep(10)

        assert (done.query(), never.query(), raised) == (True, False, [])
        device.lose()
        waiter.join()
        assert raised == ["lost"]
        with pytest.raises(DeviceError):
            done.query()


@pytest.mark.parametrize("look", [LateEvent.query, LateEvent.synchronize])
def test_late_device_has_run_what_an_event_says_it_has_passed(look: Callable[[LateEvent], bool | None]) -> None:
    """On the machine's clock, which goes on between two looks at it: the kernel has run, not only come to its end."""

    class Host(RealHost):
        instant = 0.0

        def now(self) -> float:
            self.instant += 1 * MS
            return self.instant

        def wait(self, key: object, until: float = inf) -> None:
            pass

    device, ran = LateDevice(Host(), launch_s=0, record_s=0, query_s=0, wake_s=0), list[str]()
    stream = device.stream()
    for cost in range(1, 12):
        ran.clear()
        stream.launch(lambda: ran.append("kernel"), cost_s=cost * MS)
        event = stream.record_event()
        while look(event) is False:
            pass

        assert ran == ["kernel"]


def test_late_device_as_torch_sees_it() -> None:
    """Streams of torch's do not wait for the legacy one; events spin unless they are told not to."""
    with VirtualHost() as host:
        devices = [LateDevice(host, index=number) for number in range(2)]
        torch = LateTorch(host, devices)
        torch.set_device(1)
        stream = torch.Stream()
        with torch.stream(stream):
            torch.current_stream().launch(cost_s=1 * MS)
            event = torch.Event(blocking=True)
            event.record()
        torch.Event().synchronize()
        event.synchronize()

        assert (stream.device, stream.blocking) == (devices[1], False)
        assert torch.current_stream() is devices[1].default_stream
        assert (devices[1].waits.total(), devices[1].spun.total(), devices[1].strays.total()) == (2, 1, 0)


def test_late_device_host_runs_foreign_code_on_its_clock() -> None:
    """A module's clock, queues and threads are replaced; an hour's patience takes no time, and figures repeat."""

    class Module(ModuleType):
        time: Any = None
        queue: Any = None
        threading: Any = None

    def seen() -> list[float]:
        module, instants = Module("foreign"), list[float]()
        with VirtualHost(wake_s=1 * MS) as host, host.driving(module):
            items, begun = module.queue.SimpleQueue(), host.now()

            def consume() -> None:
                while (item := items.get(timeout=3600)) is not None:
                    instants.append(item + instant(host, begun))
                    module.time.sleep(5 * MS)

            thread = module.threading.Thread(target=consume, name="consumer", daemon=True)
            thread.start()
            for _ in range(3):
                module.time.sleep(2 * MS)
                items.put(0)
            thread.join(1)
            assert thread.is_alive()
            items.put(None)
            thread.join()
            assert not thread.is_alive()
        return instants

    assert seen() == seen() == [3.0, 8.0, 13.0]
