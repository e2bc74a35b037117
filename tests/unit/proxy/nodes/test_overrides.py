"""What operators ordered, as it passes from one worker to another."""

import asyncio
from pathlib import Path

import pytest

from baton.contracts.kv_transfer import Role
from baton.proxy.admin import override_store
from baton.proxy.admin.override_store import OverrideStore, OverrideStoreError
from baton.proxy.nodes.overrides import AdminOverrides
from tests.unit.proxy.nodes.test_registry import members

ROLE: Role = "decode"
ALL = ("http://d", "http://e", "http://f")


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_a_worker_does_what_another_was_told() -> None:
    """Added, removed and drained nodes are the same in both, also where a later order takes an earlier one back."""
    async with members(decode=ALL) as told, members(decode=ALL) as other:
        told.add("decode", "http://new")
        told.remove(told.find("http://e")[0])
        told.drain(told.find("http://f")[0])
        other.adopt(told.orders())

        assert other.orders() == told.orders()
        assert told.orders(7).version == 7
        assert [(node.url, node.draining) for node in other.decode] == [
            ("http://d", False),
            ("http://f", True),
            ("http://new", False),
        ]

        told.add("decode", "http://e")
        told.drain(told.find("http://f")[0], draining=False)
        told.remove(told.find("http://new")[0])
        other.adopt(told.orders())

        assert sorted(node.url for node in other.decode) == sorted(ALL)
        assert not any(node.draining for node in other.decode)
        assert other.orders() == told.orders()


async def test_a_change_of_a_role_may_be_older_than_the_machine_is_up() -> None:
    """Another proxy was given the order then. A newer one counts, an older one does not."""
    async with members(decode=ALL) as found:
        for role, ago_s, expected_s in (("prefill", 1e8, 1e8), ("decode", 1e7, 1e7), ("prefill", 1e9, 1e7)):
            found.change_role(found.find("http://e")[0], role, ago_s=ago_s)  # type: ignore[arg-type]  # one of two
            assert found.roles_unchanged_s == pytest.approx(expected_s, abs=60)


async def test_orders_about_a_node_that_no_source_has_named_yet_wait_for_it() -> None:
    """The worker that adopts them has just started, and its name is not resolved yet."""
    async with members(decode=()) as found:
        orders = AdminOverrides(removed={ROLE: ("http://a",)}, drained={ROLE: ("http://b",)}, evacuated={"http://b": 7})
        found.adopt(orders)
        found._take("decode", "dns://d:1", ("http://a", "http://b"))
        found._take("prefill", "dns://p:1", ("http://b",))

        assert [(node.url, node.draining, node.evacuated_at) for node in found.decode] == [("http://b", True, 7)]
        assert found.prefill[-1].evacuated_at == 0


async def test_what_ends_with_its_source_is_told() -> None:
    """The address may belong to another replica when it comes back: no worker shall keep it out then."""
    forgotten: list[AdminOverrides] = []
    async with members(decode=()) as found:
        found.on_forgotten = forgotten.append
        found._take("decode", "dns://d:1", ("http://a", "http://b", "http://c"))
        found.remove(found.find("http://a")[0])
        found.drain(found.find("http://b")[0])
        added = found.add("decode", "http://x")
        found.drain(added)
        found.remove(added)  # an order says it itself
        assert forgotten == []
        ordered = found.orders()
        found._take("decode", "dns://d:1", ("http://c",))
        found._take("decode", "dns://d:1", ("http://a", "http://c"))

        assert [node.url for node in found.decode] == ["http://c", "http://a"]
        assert [(each.removed[ROLE], each.drained[ROLE]) for each in forgotten] == [(("http://a",), ("http://b",))]
        assert ordered.without(forgotten[0]).same_as(found.orders())
        assert ordered.without(forgotten[0]).version == ordered.version + 1


async def test_a_book_is_read_as_it_was_written(tmp_path: Path) -> None:
    orders = AdminOverrides(version=3, added={ROLE: ("http://a",)})
    written = OverrideStore(tmp_path / "orders.json")
    before = written.read()
    async with written.locked():
        written.write(orders)

    assert (before, OverrideStore(tmp_path / "orders.json").read()) == (AdminOverrides(), orders)
    assert names_in(tmp_path) == ["orders.json", "orders.lock"]


async def test_a_lock_that_is_never_let_go_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder may have been stopped."""
    monkeypatch.setattr(override_store, "LOCK_TIMEOUT_S", 0.05)
    held, wanted = (OverrideStore(tmp_path / "orders.json") for _ in range(2))
    async with held.locked():
        with pytest.raises(OverrideStoreError, match="another worker holds"):
            async with wanted.locked():
                pass
    async with wanted.locked():
        await asyncio.sleep(0)
