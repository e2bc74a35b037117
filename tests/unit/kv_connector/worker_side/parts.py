"""A prefill and a decode rank without threads: a test carries their messages, and their parts only note what they are asked."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.handoff.outgoing import Prompt
from baton.kv_connector.protocol.messages import Body, Commit, Fail, decode
from baton.kv_connector.worker_side import decode as decode_module
from baton.kv_connector.worker_side import prefill as prefill_module
from tests.support.clock import Clock
from tests.support.ranks import Ranks

DIALLER: Any = ("accept", b"d")  # how P reaches D
P_PARTS = {
    "ControlLoop": "loop",
    "Sender": "sender",
    "make_layer_sync": "sync",
    "DigestThread": "digests",
    "OutcomeSender": "outcomes",
}
D_PARTS = {
    "ControlLoop": "loop",
    "ReceivingEngines": "engines",
    "DeviceWaiter": "zeroing",
    "Landing": "landing",
    "DigestThread": "digests",
    "Waker": "waker",
}
PROMPT = Prompt(16, 1, b"prompt a")


class Part:
    """Notes what is asked of it, under its name; does nothing."""

    def __init__(self, name: str, asked: list[tuple[Any, ...]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.totals = {"pushes": 3}
        self.args, self.kwargs = args, kwargs  # it was made with
        self.listened: tuple[Any, ...] = ()
        self._name, self._asked = name, asked

    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda *asked: self._asked.append((f"{self._name}.{method}", *asked))

    def listen(self, *asked: Any) -> str:
        self.listened = asked
        return "tcp://0.0.0.0:7"


class Parts:
    """Those of one rank."""

    def __init__(self, module: ModuleType, names: dict[str, str], patch: pytest.MonkeyPatch) -> None:
        self.made: dict[str, Part] = {}
        self._asked: list[tuple[Any, ...]] = []
        self._mail: list[tuple[Any, bytes]] = []
        for place, name in names.items():
            patch.setattr(module, place, partial(self._make, name))

    def _make(self, name: str, *args: Any, **kwargs: Any) -> Part:
        self.made[name] = Part(name, self._asked, args, kwargs)
        return self.made[name]

    def told(self, part: str, callback: str, *args: Any) -> None:
        """A part says something by the callback that it was made with."""
        self.made[part].kwargs[callback](*args)

    def asked(self) -> list[tuple[Any, ...]]:
        """What the parts have been asked since the last call, messages left out: those wait for `sent` and `mail`."""
        asked, self._asked[:] = self._asked[:], []
        self._mail += [(peer, payload) for what, *(peer, payload) in _only("loop.send", asked)]
        return [each for each in asked if each[0] != "loop.send"]

    def sent(self) -> list[Body]:
        """The messages that have not been carried yet."""
        self._mail += [(peer, payload) for _, peer, payload in _only("loop.send", self._asked)]
        self._asked[:] = [each for each in self._asked if each[0] != "loop.send"]
        return [decode(payload).body for _, payload in self._mail]

    def mail(self) -> list[tuple[Any, bytes]]:
        """Take the messages away: whom they are for, and what they say."""
        self.sent()
        mail, self._mail = self._mail, []
        return mail


class Pair(Ranks):
    """Both ranks, not started. Time stands still, and P pushes when it is told to."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **kwargs: Any) -> None:
        self.clock = Clock()
        for module in (prefill_module, decode_module):
            patch.setattr(module, "time", SimpleNamespace(monotonic=self.clock))
        self.p, self.d = Parts(prefill_module, P_PARTS, patch), Parts(decode_module, D_PARTS, patch)
        super().__init__(folder, **kwargs)

    def carry(self) -> None:
        """Carry messages until there are none."""
        while (to_p := self.d.mail()) + (to_d := self.p.mail()):
            for peer, payload in to_p:
                assert peer == ("dial", self.prefill.address)
                self.prefill.on_payload(DIALLER, payload)
            for peer, payload in to_d:
                assert peer == DIALLER
                self.decode.on_payload(("dial", self.prefill.address), payload)

    def meet(self) -> None:
        """They know each other, D has an engine, and P knows that D wants the prompt of transfer `a`."""
        self.d.told("engines", "added", 0, "e0")
        self.watch("a")
        self.carry()

    def under_way(self) -> None:
        """P computes a prompt of one block, for which D has reserved its block 7."""
        self.meet()
        self.reserve("a", 16, [7])
        self.compute("a", tokens=16, blocks=[1], ready=1)
        self.carry()

    def push(self, *, ok: bool = True) -> None:
        """P's device has written all layers of `a`, and one push takes them."""
        made = self.p.made["sender"].kwargs
        for layer in range(4):
            made["fan_out"].ready("p-a", layer, 1, self.clock())
        push = made["producer"].next_push(lambda _: 100)
        made["producer"].push_begun(push, self.clock())
        self.clock.now_s += 1
        made["producer"].push_done(push, ok, self.clock())
        made["flush"]()


def fail(reason: str, epoch: int = 1, *, dirty: bool = False) -> Fail:
    return Fail(transfer_id="a", epoch=epoch, dirty=dirty, reason=reason)


def commit(**changes: Any) -> Commit:
    timings = dict.fromkeys(("reserved", "scheduled", "first_layer", "last_layer", "first_push"), 0.0)
    usual: dict[str, Any] = {
        "transfer_id": "a",
        "epoch": 1,
        "tokens": 16,
        "prompt_hash": b"prompt a",
        "shares": 4,
        "timings_s": timings | {"last_push": 1.0, "commit": 1.0},
        "pushing_s": 1.0,
    }
    return Commit(**usual | changes)


def _only(what: str, asked: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [each for each in asked if each[0] == what]
