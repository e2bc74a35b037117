"""What the fork server runs for the tests."""

import ctypes
import itertools
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from baton.contracts.kv_transfer import Role

FLIP_FILE = "FLIP_FILE"  # environment: while this file exists, the next push damages one byte, and removes it
CLONE_NEWNS, MS_REC, MS_SLAVE = 0x20000, 0x4000, 1 << 19  # linux/sched.h, linux/mount.h
COUNT_FILE = "COUNT_FILE"  # environment: where `counting_node` writes
LEAK_FILE = "LEAK_FILE"  # environment: while this file exists, the next reservation keeps one block, and removes it


def plain_vllm(argv: Sequence[str]) -> None:
    """Serve with vLLM alone: the reference that Baton must equal."""
    from baton.node.startup import environment

    environment.apply(environment.environment("cpu", list(argv), len(os.sched_getaffinity(0)), os.environ))
    sys.argv = ["vllm", *argv]
    from vllm.entrypoints.launchers.api_server import entry

    entry.main()


def late_tokens_vllm(argv: Sequence[str]) -> None:
    """The same with our worker, whose tokens come late: through slots, events and a thread, as from a GPU."""
    from baton.model_runner.runner import event_synced
    from baton.model_runner.tokens.transfer import TokenTransfer
    from tests.support.fake_device import FakeDevice
    from tests.support.fake_lane import FakeLane

    def late(_device: Any, slot_bytes: int) -> TokenTransfer:
        device = FakeDevice(seed=1)
        return TokenTransfer(FakeLane(device, device.stream()), slot_bytes)

    event_synced.transfer_for = late  # type: ignore[assignment,attr-defined]  # in this process and those that it forks
    plain_vllm([*argv, "--worker-cls", "baton.model_runner.cpu.Worker"])


def flipping_prefill_node(argv: Sequence[str]) -> None:
    """A prefill node whose transfer engine can be told to damage a byte of what it has delivered."""
    from baton.kv_connector.engine import mooncake
    from baton.prefill_node.__main__ import main
    from tests.support.flipping import FlippingFactory

    real, order = mooncake.MooncakeFactory, Path(os.environ[FLIP_FILE])

    def make(**settings: Any) -> FlippingFactory:
        return FlippingFactory(real(**settings), lambda: _taken(order))

    mooncake.MooncakeFactory = make  # type: ignore[assignment,misc]  # in this process and those that it forks
    main(argv)


def leaking_decode_node(argv: Sequence[str]) -> None:
    """A decode node whose connector can be told to forget one reference that it holds."""
    from baton.decode_node.__main__ import main
    from baton.kv_connector.scheduler_side.ledger import ReservationLedger

    real, order = ReservationLedger.release, Path(os.environ[LEAK_FILE])

    def release(self: ReservationLedger, request_id: str) -> list[int]:
        if request_id in self._held and _taken(order):
            self._held[request_id].pop()
        return real(self, request_id)

    ReservationLedger.release = release  # type: ignore[method-assign]  # in this process and those that it forks
    main(argv)


def telling_prefill_node(argv: Sequence[str]) -> None:
    """A prefill node whose connector prints when it has been shut down."""
    from baton.kv_connector.connector import BatonConnector
    from baton.prefill_node.__main__ import main

    real = BatonConnector.shutdown

    def shutdown(self: BatonConnector) -> None:
        real(self)
        print(f"shut down: {self.role.name}", flush=True)

    BatonConnector.shutdown = shutdown  # type: ignore[method-assign]  # in this process and those that it forks
    main(argv)


def hanging_decode_node(argv: Sequence[str], order: str) -> None:
    """A decode node whose model sleeps for ever amid the fifth step that finds the file `order`, which it removes."""
    from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

    from baton.decode_node.__main__ import main

    real, file, calls = Qwen2ForCausalLM.forward, Path(order), itertools.count(1)

    def planted_sleep(*args: Any, **kwargs: Any) -> Any:
        if file.exists() and next(calls) == 5:
            file.unlink()
            time.sleep(3600)
        return real(*args, **kwargs)

    Qwen2ForCausalLM.forward = planted_sleep  # in this process and those that it forks
    main(argv)


def offloading_node(argv: Sequence[str], role: Role, store_after_s: float, load_after_s: float) -> None:
    """A node that may offload, though it runs on a CPU: only the copies themselves are not vLLM's."""
    from baton.node.command import main
    from baton.node.startup import extra_connectors
    from tests.support.host_copies import copy_late

    extra_connectors.DEVICES = ("cpu",)
    copy_late(store_after_s=store_after_s, load_after_s=load_after_s)
    main(role, argv)


def _taken(order: Path) -> bool:
    """Whether there was an order; each is carried out once."""
    try:
        order.unlink()
    except FileNotFoundError:
        return False
    return True


def bench_serve(argv: Sequence[str]) -> None:
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args(list(argv)))


def node_on_host(argv: Sequence[str], role: Role) -> None:
    """A node's process that shares neither network, nor devices in /sys, nor shared memory with those of other hosts."""
    from baton.node.command import main

    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None)
    if failed or any(
        libc.mount(kind, at, kind, 0, None) for kind, at in ((b"sysfs", b"/sys"), (b"tmpfs", b"/dev/shm"))
    ):
        raise OSError(ctypes.get_errno(), "a host's own file systems cannot be mounted")
    sys.exit(main(role, argv))


def counting_node(argv: Sequence[str], role: Role) -> None:
    """A node that writes down how many tokens of which request each step computes."""
    from baton.kv_connector.scheduler_side.sides import SchedulerSides

    real, file = SchedulerSides.take_step, Path(os.environ[COUNT_FILE])

    def take_step(self: SchedulerSides, output: Any) -> Any:
        with file.open("a") as lines:
            lines.writelines(f"{name} {tokens}\n" for name, tokens in output.num_scheduled_tokens.items())
        return real(self, output)

    SchedulerSides.take_step = take_step  # type: ignore[method-assign]  # in this process and those that it forks
    import_module(f"baton.{role}_node.__main__").main(argv)
