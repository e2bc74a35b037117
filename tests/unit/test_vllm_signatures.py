"""Our overrides, calls and imports beside every version of vLLM that we run on, and one that vllm-ascend pins."""

import pytest

from tests.support.vllm_signatures.facts import Facts, installed, known, overrides, read
from tests.support.vllm_signatures.imports import imports
from tests.support.vllm_signatures.parameters import Call, calls_allowed_by, problem
from tests.support.vllm_signatures.source import Source
from tests.support.vllm_signatures.used import CONNECTOR, GROUPS, OVERRIDES, USED, Override

KNOWN = known()
NEWEST = [*KNOWN][-1]
READ_AGAIN = "run `python -m tests.support.vllm_signatures` and look at what has changed"

# Hooks of ours that older versions do not know: `kv_connector/engine_version.py` makes up for them, or refuses.
YOUNGER = {
    "get_loaded_kv_cache_group_ids": "0.32.0",  # before, vLLM zeroes nothing that a connector loads asynchronously
    "get_transfer_results": "0.30.0",  # before, `get_finished` and `get_block_ids_with_load_errors`
    "has_pending_push_work": "0.28.0",  # a decode node needs it
}
OUR_OWN = {"pipeline_counts", "token_report"}  # called by name over vLLM's `collective_rpc`
# What our code asks for with a default.
TOLERATED = {
    f"{CONNECTOR}._kv_cache_manager": "0.30.0",
    "vllm.config:CacheConfig.kv_cache_layout": "0.29.0",
    "vllm.config:LoRAConfig.enable_moe_shared_loras": "0.28.0",
}


def is_older(version: str, than: str) -> bool:
    """Whether one version came before another."""
    one, other = ([*map(int, each.split("."))] for each in (version, than))
    return one < other


def promised(hook: str, facts: Facts) -> list[Call]:
    """The calls that a version's base class allows of a hook."""
    return calls_allowed_by(facts.hooks[hook]) if hook in facts.hooks else []


def misfits(mine: dict[str, list[str]], facts: Facts) -> list[str]:
    """Say which calls of a version's some hook of ours cannot take."""
    return [
        f"{hook}({call}): {why}"
        for hook, parameters in mine.items()
        for call in {*promised(hook, facts), *facts.calls_of(hook)}
        if (why := problem(parameters, call))
    ]


@pytest.mark.parametrize("version", KNOWN)
def test_vllm_can_call_every_hook_of_ours(version: str) -> None:
    """As its scheduler and workers do, and as its base class promises: by position and by name."""
    assert misfits(overrides(OVERRIDES[0].ours), KNOWN[version]) == []


@pytest.mark.parametrize(
    ("hook", "parameters", "why"),
    [
        ("update_state_after_alloc", ["self", "request", "blocks"], "too many positional arguments"),
        ("get_num_new_matched_tokens", ["self", "request", "tokens"], "missing a required argument: 'tokens'"),
        ("save_kv_layer", ["self", "layer_name", "kv_layer", "attn_metadata"], "unexpected keyword argument"),
        ("on_new_request", ["self", "request", "more"], "missing a required argument: 'more'"),
        ("__init__", ["self", "vllm_config", "role"], "too many positional arguments"),
    ],
)
def test_a_hook_that_vllm_cannot_call_is_found(hook: str, parameters: list[str], why: str) -> None:
    """A parameter too few, too many, or of another name."""
    found = misfits(overrides(OVERRIDES[0].ours) | {hook: parameters}, KNOWN[NEWEST])

    assert found
    assert any(why in each for each in found)


@pytest.mark.parametrize("version", KNOWN)
def test_a_hook_that_a_version_does_not_know_is_one_that_we_know_of(version: str) -> None:
    """Else vLLM would never call it, and nobody would notice."""
    mine = overrides(OVERRIDES[0].ours)
    facts = KNOWN[version]
    unknown = {hook for hook in mine if hook not in facts.hooks and f"{GROUPS}.{hook}" not in facts.names}

    assert unknown == {hook for hook, since in YOUNGER.items() if is_older(version, since)}


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("override", OVERRIDES[1:], ids=lambda override: override.ours)
def test_the_other_classes_of_ours_take_the_calls_of_those_they_stand_in_for(override: Override, version: str) -> None:
    """Workers, and the report that vLLM adds up."""
    ours, theirs = override
    for method, parameters in overrides(ours).items():
        if method in OUR_OWN:
            continue
        promised = KNOWN[version].names.get(f"{theirs}.{method}")
        assert promised is not None, f"{theirs} has no {method}"
        assert [why for call in calls_allowed_by(promised) if (why := problem(parameters, call))] == []


@pytest.mark.parametrize("version", KNOWN)
def test_every_name_that_we_import_is_there(version: str) -> None:
    """Or its absence is provided for where it is imported."""
    missing = [
        f"{each.file} imports {each.key}"
        for each in imports()
        if each.key not in KNOWN[version].names and not each.is_guarded
    ]

    assert missing == [], READ_AGAIN


@pytest.mark.parametrize("version", KNOWN)
def test_everything_else_that_we_use_is_there(version: str) -> None:
    """Attributes and methods of vLLM's objects."""
    used = [f"{holder}.{member}" for holder, members in USED.items() for member in members]
    missing = {key for key in used if key not in KNOWN[version].names}

    assert missing == {key for key, since in TOLERATED.items() if is_older(version, since)}


@pytest.mark.parametrize("version", KNOWN)
def test_blocks_are_held_and_given_back_by_calls_that_every_version_takes(version: str) -> None:
    """The ledger's own calls, on which I3 rests."""
    names, pool = KNOWN[version].names, "vllm.v1.core.block_pool:BlockPool"
    for method in ("touch", "free_blocks"):
        parameters = names[f"{pool}.{method}"]
        assert parameters is not None
        assert problem(parameters, Call(1)) is None


def test_the_facts_of_the_installed_version_are_those_of_its_source() -> None:
    """Whoever moves to another version, or uses another name of it, has to look at what it has."""
    found = read(installed())

    assert found.version in KNOWN, READ_AGAIN
    assert found == KNOWN[found.version], READ_AGAIN


def test_an_absent_name_is_seen_as_absent() -> None:
    """The reader does not take everything for there; it follows imports and bases."""
    source = Source(installed())

    assert source.find("vllm.v1.request", "Request") is not None
    assert source.find("vllm.config", "ParallelConfig") is not None
    assert source.find("vllm", "__version__") is not None
    assert source.member("vllm.v1.worker.cpu_worker", "CPUWorker", "execute_model") is not None
    assert source.find("vllm.v1.request", "NoSuchThing") is None
    assert source.find("vllm.no.such.module", "Request") is None
    assert source.member("vllm.v1.request", "Request", "no_such_attribute") is None
