"""The fake device keeps a real one's promises, and no others."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.fake_device import DeviceError, FakeDevice, Run, Stream


def launch(stream: Stream, log: list[str], *names: str) -> None:
    """Queue kernels that write their names."""
    for name in names:
        stream.launch(partial(log.append, name))


def test_a_kernel_has_not_run_when_its_launch_returns() -> None:
    """Nothing happens until somebody waits; then a stream runs in its order."""
    device, log = FakeDevice(1, Run.ON_WAIT), list[str]()
    stream = device.stream()

    launch(stream, log, "a", "b")
    event = stream.record_event()
    launch(stream, log, "c")

    assert (log, event.query(), stream.query()) == ([], False, False)
    event.synchronize()
    assert (log, event.query(), stream.query()) == (["a", "b"], True, False)
    stream.synchronize()
    assert (log, stream.query()) == (["a", "b", "c"], True)


def test_waiting_for_one_stream_leaves_the_others_alone() -> None:
    """A copy on another stream is not waited for by accident, unless the whole device is."""
    device, log = FakeDevice(1, Run.ON_WAIT), list[str]()
    compute, copies = device.stream(), device.stream()
    launch(copies, log, "copy")
    launch(compute, log, "kernel")

    compute.synchronize()
    assert log == ["kernel"]
    device.synchronize()
    assert log == ["kernel", "copy"]


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_waits_for_an_event_of_another(seed: int) -> None:
    """What is behind the wait runs after the event; the wait sees what had been recorded when it was issued."""
    device, log = FakeDevice(seed, Run.ON_WAIT), list[str]()
    first, second = device.stream(), device.stream()
    event = device.event()
    launch(first, log, "a")
    event.record(first)
    event.wait(second)
    launch(second, log, "b")
    launch(first, log, "c")
    event.record(first)

    second.synchronize()
    assert log == ["a", "b"]
    event.synchronize()  # stands for the later point now
    assert log == ["a", "b", "c"]


def order_of(seed: int) -> str:
    """The order in which two streams with two kernels each run."""
    device, log = FakeDevice(seed, Run.ON_WAIT), list[str]()
    launch(device.stream(), log, "a", "b")
    launch(device.stream(), log, "x", "y")
    assert device.advance(9) == 4
    return "".join(log)


def test_every_legal_order_comes_up_and_no_other() -> None:
    """Six ways to interleave two streams; the same seed takes the same way."""
    orders = {order_of(seed) for seed in range(100)}

    assert orders == {"abxy", "axby", "axyb", "xaby", "xayb", "xyab"}
    assert [order_of(seed) for seed in range(20)] == [order_of(seed) for seed in range(20)]


def in_thread(function: Callable[[], None]) -> threading.Thread:
    """Run something beside the test."""
    thread = threading.Thread(target=function, name="waiter", daemon=True)
    thread.start()
    return thread


def test_a_worker_thread_runs_what_is_queued() -> None:
    """`BACKGROUND`: late, elsewhere, each stream in its order, and a wait returns when it is over."""
    with FakeDevice(1) as device:
        log, threads = list[str](), set[str]()
        streams = [device.stream() for _ in range(3)]
        for number in range(30):
            stream = streams[number % 3]
            stream.launch(lambda: threads.add(threading.current_thread().name))
            launch(stream, log, f"{number:02}")

        device.synchronize()

    assert sorted(log) == [f"{number:02}" for number in range(30)]
    assert all(mine == sorted(mine) for mine in ([n for n in log if int(n) % 3 == stream] for stream in range(3)))
    assert threads == {"fake-device"}


@pytest.mark.parametrize("run", [Run.BACKGROUND, Run.ON_WAIT])
def test_a_kernel_that_fails_shows_at_the_next_wait(run: Run) -> None:
    """As a real one's fault does; from then on every wait raises instead of hanging."""
    with FakeDevice(1, run) as device:
        stream, log = device.stream(), list[str]()
        stream.launch(lambda: log.append(str(1 // len(log))))

        for _ in range(2):
            with pytest.raises(DeviceError, match="a kernel failed: integer division or modulo by zero") as caught:
                stream.synchronize()
            assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_lost_device_ends_the_waits_for_it() -> None:
    """A thread that waits already is told, and what has completed stays so."""
    device, raised = FakeDevice(1, Run.ON_ADVANCE), list[str]()
    stream = device.stream()
    done = stream.record_event()
    device.advance()
    later = stream.record_event()

    def wait() -> None:
        try:
            later.synchronize()
        except DeviceError as exc:
            raised.append(str(exc))

    waiter = in_thread(wait)
    device.lose("it fell off the bus")
    waiter.join(5)

    assert raised == ["it fell off the bus"]
    done.synchronize()
    assert device.advance() == 0
