"""Fairness among tenants."""

import random
from collections import Counter

from baton.proxy.admission.fair_queue import FairQueue


def filled(*items: tuple[str, str, int, float]) -> FairQueue[str]:
    """A queue with these items of tenants, their priorities and costs."""
    queue: FairQueue[str] = FairQueue()
    for item, tenant, priority, cost in items:
        queue.put(item, tenant=tenant, priority=priority, cost=cost)
    return queue


def drain(queue: FairQueue[str], count: int) -> list[str]:
    return [item for _ in range(count) if (item := queue.pop()) is not None]


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    queue = filled(("0", "a", 0, 5.0), ("1", "a", 0, 1.0), ("2", "a", 0, 3.0))

    assert drain(queue, 9) == ["0", "1", "2"]
    assert queue.pop() is None


def test_a_tenant_with_many_waiting_delays_another_one_by_one_request() -> None:
    queue = filled(*((f"a{index}", "a", 0, 1) for index in range(1000)))
    drain(queue, 10)
    queue.put("b0", tenant="b", priority=0, cost=1)

    assert "b0" in drain(queue, 2)


def test_tenants_get_equal_parts_of_the_cost() -> None:
    """One with requests ten times as long is served a tenth as often; and a long absence saves nothing up."""
    queue = filled(
        *(
            (f"{tenant} {index}", tenant, 0, cost)
            for index in range(1000)
            for tenant, cost in (("long", 10), ("short", 1))
        )
    )

    served = Counter(item.split()[0] for item in drain(queue, 550))
    assert 495 <= served["short"] <= 505
    for number in range(4):
        queue.put(f"late {number}", tenant="late", priority=0, cost=1)
    assert Counter(item.split()[0] for item in drain(queue, 4))["late"] <= 2


def test_an_emptied_queue_owes_nothing() -> None:
    """What a tenant had while no other one waited does not put it behind others later."""
    queue = filled(("a0", "a", 0, 10))
    assert drain(queue, 2) == ["a0"]
    queue.put("a1", tenant="a", priority=0, cost=1)
    queue.put("b0", tenant="b", priority=0, cost=1)

    assert drain(queue, 2) == ["a1", "b0"]


def test_between_equals_the_order_of_arrival_decides() -> None:
    queue = filled(("first", "z", 0, 1), ("second", "a", 0, 1))

    assert queue.ahead_of("new", 0) == 2
    assert queue.ahead_of("a", 0) == 2
    assert drain(queue, 2) == ["first", "second"]


def test_a_priority_goes_before_every_tag() -> None:
    queue = filled(("usual", "a", 0, 1), ("urgent", "a", -1, 1), ("patient", "b", 1, 1))

    assert drain(queue, 3) == ["urgent", "usual", "patient"]


def test_counts_follow_a_request_that_leaves() -> None:
    """1,000 random steps against a plain list; who left is never served, and nothing is kept for them."""
    rng = random.Random(1)
    queue: FairQueue[str] = FairQueue()
    here: dict[str, str] = {}
    for step in range(5000):
        if rng.random() < 0.5:
            tenant = f"tenant {rng.randrange(3000)}"
            queue.put(f"{step}", tenant=tenant, priority=rng.randrange(2), cost=rng.random())
            here[f"{step}"] = tenant
        elif here and rng.random() < 0.5:
            gone = rng.choice(list(here))
            queue.remove(gone)
            queue.remove(gone)
            del here[gone]
            assert len(queue._heap) <= 2 * len(here) + 16
        elif (item := queue.pop()) is not None:
            del here[item]
        assert len(queue) == len(here)
    assert queue._counts == Counter(here.values())
    assert len(queue._heap) <= 2 * len(here) + 16
    assert len(queue._ends) <= 2 * len(here) + 1024 + 1


def test_a_request_that_leaves_unserved_is_not_paid_for() -> None:
    """A tenant whose clients give up would wait for those of the others ever longer."""
    queue = filled(*((f"a{at}", "a", 0, 1) for at in range(9)), *((f"b{at}", "b", 0, 1) for at in range(4)))
    for at in range(1, 9):
        queue.remove(f"a{at}")
    queue.put("a9", tenant="a", priority=0, cost=1)

    assert drain(queue, 4) == ["a0", "b0", "b1", "a9"]


def test_the_older_request_of_a_tenant_goes_first_though_others_of_it_have_left() -> None:
    queue = filled(*((f"a{at}", "a", 0, 1) for at in range(4)), *((f"b{at}", "b", 0, 1) for at in range(9)))
    for at in range(3):
        queue.remove(f"a{at}")
    for at in range(4, 7):
        queue.put(f"a{at}", tenant="a", priority=0, cost=1)

    assert queue.ahead_of("a", 0) == 9
    assert drain(queue, 8) == ["a3", "b0", "b1", "a4", "b2", "a5", "b3", "a6"]


def test_a_request_that_has_left_saves_nothing_up_for_those_that_come_later() -> None:
    """Others were served in between, with a higher priority."""
    queue = filled(("gone", "a", 1, 1), *((f"c{at}", "c", 0, 10) for at in range(5)))
    queue.remove("gone")
    drain(queue, 5)
    for tenant in ("b", "a"):
        for at in range(2):
            queue.put(f"{tenant}{at}", tenant=tenant, priority=1, cost=10)

    assert queue.ahead_of("a", 1) == 4
    assert Counter(item[0] for item in drain(queue, 2)) == {"a": 1, "b": 1}


def test_what_a_tenant_is_served_counts_for_its_other_priorities() -> None:
    queue = filled(("a low", "a", 1, 1), ("a high", "a", 0, 5), ("b0", "b", 1, 1), ("b1", "b", 1, 1))

    assert (queue.ahead_of("a", 1), queue.ahead_of("b", 1)) == (4, 4)
    assert drain(queue, 1) == ["a high"]
    assert queue.ahead_of("a", 1) == 3
    assert drain(queue, 1) == ["b0"]
    assert drain(queue, 2) == ["b1", "a low"]


def test_tenants_that_never_come_again_are_forgotten() -> None:
    """One tenant always waits and the others are new, so the clock stands still; a waiting tenant is not forgotten."""
    queue = filled(("first", "first", 9, 1))
    for index in range(5000):
        queue.put(f"{index}", tenant=f"tenant {index}", priority=0, cost=1)
        queue.pop()
    queue.put("second", tenant="first", priority=9, cost=1)
    queue.put("new", tenant="new", priority=9, cost=1)

    assert len(queue._ends) <= 2 * (2 + 512) + 1
    assert drain(queue, 9) == ["first", "new", "second"]


def test_the_order_stays_when_many_have_left() -> None:
    """What is left of the heap is ordered again."""
    rng = random.Random(3)
    priorities = rng.sample(range(200), 200)
    queue = filled(*((f"{priority:03}", "a", priority, 1) for priority in priorities))
    gone = rng.sample(range(200), 120)
    for priority in gone:
        queue.remove(f"{priority:03}")

    assert drain(queue, 200) == [f"{priority:03}" for priority in range(200) if priority not in gone]


def test_a_tenant_that_owes_much_is_remembered_behind_many_that_have_paid() -> None:
    queue = filled(("last", "last", 9, 1), ("debt", "debtor", 0, 1_000_000))
    queue.pop()
    for index in range(2000):
        queue.put(f"mover {index}", tenant="mover", priority=0, cost=2)
        queue.put(f"{index}", tenant=f"tenant {index}", priority=0, cost=1)
        drain(queue, 2)
    queue.put("debtor", tenant="debtor", priority=0, cost=1)
    queue.put("new", tenant="new", priority=0, cost=1)

    assert drain(queue, 2) == ["new", "debtor"]
