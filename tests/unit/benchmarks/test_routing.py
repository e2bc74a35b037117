"""The routing bench: its servers, what it sends, and both experiments in small."""

import json
from pathlib import Path

import pytest

from baton.loadtest.traffic.trace_replay import CONVERSATION, read_trace
from baton.proxy.routing.policies import LeastLoad
from benchmarks.routing.__main__ import main
from benchmarks.routing.policies import follow_longest_prefix
from benchmarks.routing.servers import BlockCache, Server
from benchmarks.routing.simulation import Proxy, Simulation
from benchmarks.routing.workload import Request, write_prompts


def test_a_cache_forgets_the_ends_of_what_was_used_longest_ago() -> None:
    """Leading blocks count until one is missing."""
    cache = BlockCache(4)
    cache.use((1, 2, 3))
    cache.use((1, 7))

    assert [cache.count_cached(blocks) for blocks in ((1, 2, 3), (1, 7), (2, 3), (3,))] == [3, 2, 2, 1]
    cache.use((8,))
    assert [cache.count_cached(blocks) for blocks in ((1, 2, 3), (1, 7), (8,))] == [2, 2, 1]


def test_a_server_computes_one_prompt_after_the_other_and_only_what_it_has_not() -> None:
    """Waits, ends and load by hand."""
    server = Server(0, tokens_per_s=1000.0, cache_blocks=10)
    first = server.submit(Request(0.0, 1024, 4096, (1,)))
    second = server.submit(Request(1.0, 1024, 4096, (1,)))

    assert (first.wait_s, first.end_s) == (0.0, 1.024)
    assert [second.wait_s, second.end_s] == pytest.approx([0.024, 1.536])
    assert (server.load.requests, server.load.prompt_bytes, server.computed_tokens) == (2, 8192, 1536)
    server.end(first.request)
    assert (server.load.requests, server.load.prompt_bytes) == (1, 4096)


def test_prompts_share_the_chunks_that_the_traces_blocks_say() -> None:
    """The proxy's own numbers of two prompts agree in as many chunks as their equal leading blocks fill."""
    first, *others = write_prompts(read_trace(CONVERSATION)[:50])
    for other in others:
        equal = sum(len(set(pair)) == 1 for pair in zip(first.blocks, other.blocks, strict=False))
        chunks = sum(len(set(pair)) == 1 for pair in zip(first.prefixes, other.prefixes, strict=False))
        assert equal == 1  # the system prompt, some 2,500 characters
        assert chunks == 1


def test_the_oracle_follows_caches_but_not_what_all_prompts_share() -> None:
    """A node that has only the system prompt is as good as any; one that has more of the prompt is taken."""
    requests = [Request(float(at), 1536, 6144, (0, at % 3)) for at in range(6)]
    servers = [Server(slot, 1e6, 100) for slot in range(3)]
    proxy = Proxy(follow_longest_prefix(servers, requests), servers)
    slots = [served.slot for served in Simulation([proxy], servers, 1).run(requests, 1.0)]

    assert len(set(slots[:3])) == 3
    assert slots[3:] == slots[:3]


def test_a_proxy_knows_what_others_sent_from_the_next_probe_on() -> None:
    """Two proxies, each of which knows only its own request at first; nothing is left in the end."""
    servers = [Server(slot, 10.0) for slot in range(2)]
    proxies = [Proxy(LeastLoad(), servers) for _ in range(2)]
    requests = [Request(0.0, 100, 400), Request(0.0, 100, 400), Request(9.0, 1, 4), Request(99.0, 1, 4)]
    Simulation(proxies, servers, 1).run(requests[:3], 1.0)

    sent = [server.load.prompt_bytes for server in servers]
    assert sum(sent) == 804
    seen = [[node.load for node in proxy.nodes] for proxy in proxies]
    assert all(sum(loads) == pytest.approx(804, rel=0.1) for loads in seen)


@pytest.mark.parametrize(
    ("part", "policies"),
    [(["trace", "--runs", "1", "--cache-blocks", "500"], 5), (["fleet", "--nodes", "8", "--proxies", "2"], 5)],
)
def test_figures_are_the_same_for_the_same_seed(part: list[str], policies: int, tmp_path: Path) -> None:
    """A row for each policy; the file holds them and what was asked for."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps(one)}\n" for one in _requests()))
    found = []
    for name in ("a.json", "b.json"):
        assert main([part[0], str(trace), *part[1:], "--out", str(tmp_path / name)]) == 0
        found.append(json.loads((tmp_path / name).read_text()))

    assert found[0]["rows"] == found[1]["rows"]
    assert len(found[0]["rows"]) == policies
    assert found[0]["arguments"]["file"] == "trace.jsonl"
    assert main([part[0], str(trace), "--nodes", "0"]) == 2


def _requests() -> list[dict[str, object]]:
    blocks = [[0, 10 * (at % 4) + 1, 10 * (at % 4) + 2, at + 100] for at in range(40)]
    return [
        {"timestamp": 500 * at, "input_length": 2000, "output_length": 1, "hash_ids": ids}
        for at, ids in enumerate(blocks)
    ]
