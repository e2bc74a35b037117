import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from baton.proxy.admin.metric_families import Family, added_up, families, lasting, metrics
from baton.proxy.telemetry.metrics import render


def worker(requests: int, in_flight: int, seconds: float) -> list[Family]:
    """What a worker has counted, as it arrives at another one."""
    registry = CollectorRegistry()
    Counter("ended", "Requests", ("status",), registry=registry).labels("200").inc(requests)
    Gauge("in_flight", "Requests", registry=registry).set(in_flight)
    Histogram("took_seconds", "Time", buckets=(1.0, 2.0), registry=registry).observe(seconds)
    sent = msgspec.json.encode(families(registry.collect()))
    return msgspec.json.decode(sent, type=list[Family])


def lines(found: list[Family]) -> dict[str, float]:
    text = render(metrics(found)).decode()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_workers_add_up_line_by_line() -> None:
    other = CollectorRegistry()
    Counter("ended", "Requests", ("status",), registry=other).labels("503").inc()

    found = lines(added_up((worker(3, 1, 0.5), worker(4, 2, 1.5), families(other.collect()))))

    assert (found['ended_total{status="200"}'], found['ended_total{status="503"}']) == (7, 1)
    assert found["in_flight"] == 3
    assert [found[f'took_seconds_bucket{{le="{le}"}}'] for le in ("1.0", "2.0", "+Inf")] == [1, 2, 2]
    assert (found["took_seconds_count"], found["took_seconds_sum"]) == (2, 2.0)


def test_the_time_of_creation_is_no_sum() -> None:
    first, second = worker(1, 0, 1.0), worker(1, 0, 1.0)
    times = [lines(found)['ended_created{status="200"}'] for found in (first, second, added_up((first, second)))]

    assert times[2] == min(times[:2])


def test_a_worker_leaves_behind_what_it_counted_and_no_gauge() -> None:
    assert {family.name for family in lasting(worker(1, 1, 1.0))} == {"ended", "took_seconds"}


def test_alone_the_text_is_as_prometheus_client_writes_it() -> None:
    """Going through our own form and back loses nothing."""
    registry = CollectorRegistry()
    Counter("ended", "Requests\nof all", ("status",), registry=registry).labels('a"b').inc()

    assert render(metrics(families(registry.collect()))) == render(registry.collect())
