"""What the copy stream of a device does, on one that is late; no device is needed to see that."""

import threading
from unittest.mock import Mock, call, patch

import pytest
import torch

from baton.model_runner.tokens.lanes import StreamLane
from tests.support.late_device import LateDevice, LateEvent, LateTorch
from tests.support.virtual_host import RealHost

DEVICE = torch.device("cuda", 1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    """This thread's, the second of two: a new thread's would be the first one, where waiting opens a context."""
    host = RealHost()
    made = LateDevice(host, index=1, launch_s=0, record_s=0)
    module = LateTorch(host, [made, made])
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    module.set_device(DEVICE)
    return made


def test_copies_run_behind_the_model_and_beside_what_follows(device: LateDevice) -> None:
    """On a stream of their own, which has waited for the model's; the event stands behind them on that stream."""
    lane, model = StreamLane(DEVICE), device.current_stream()
    event = lane.event()
    model.launch(cost_s=60.0)
    computed_at = model.end

    with lane.issuing():
        device.current_stream().copy(int(device.copy_bytes_per_s), "to host")
        lane.record(event)
    model.launch(cost_s=60.0)

    assert isinstance(event, LateEvent)
    assert event.done_at == pytest.approx(computed_at + 1.0)
    assert model.end == pytest.approx(computed_at + 60.0)


@pytest.mark.usefixtures("device")
def test_copies_leave_the_host_alone() -> None:
    """One without `non_blocking`, or into pageable memory, waits until it is through (vLLM #22760, #22754, vllm-ascend #2788)."""
    target, source, lane = Mock(), Mock(), StreamLane(DEVICE)

    lane.copy(target, source)
    with patch.object(torch, "empty") as empty:
        lane.host_memory(64)
        lane.device_memory(64)

    target.copy_.assert_called_once_with(source, non_blocking=True)
    assert empty.call_args_list == [
        call(64, dtype=torch.uint8, pin_memory=True),
        call(64, dtype=torch.uint8, device=DEVICE),
    ]


def test_late_device_is_waited_for_asleep_by_a_thread_that_has_set_it(device: LateDevice) -> None:
    """An event that is not blocking would spin."""
    lane, stream = StreamLane(DEVICE), device.stream()
    stream.launch(cost_s=0.01)
    event = lane.event()
    event.record(stream)

    def wait() -> None:
        lane.adopt_thread()
        event.synchronize()

    taker = threading.Thread(target=wait, name="taker", daemon=True)
    taker.start()
    taker.join(20.0)

    assert device.waits == {"taker": 1}
    assert not device.strays
    assert not device.spun
