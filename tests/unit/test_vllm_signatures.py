"""Our overrides, calls and imports beside every version of vLLM that we run on, and one that vllm-ascend pins."""

from pathlib import Path

import pytest

from tests.support.other_engine import unpacked
from tests.support.vllm_signatures.facts import Facts, installed, known, ours, read, wanted
from tests.support.vllm_signatures.imports import imports
from tests.support.vllm_signatures.order import STEPS
from tests.support.vllm_signatures.parameters import calls_allowed_by, problem
from tests.support.vllm_signatures.relied import Code, Override
from tests.support.vllm_signatures.used import BATON, NOT_VLLMS

KNOWN = known()
NEWEST = [*KNOWN][-1]
READ_AGAIN = "run `python -m tests.support.vllm_signatures` and look at what has changed"

# Names that older versions do not have: `kv_connector/vllm_compat/versions.py` makes up for them, or refuses; others have a default.
SINCE = {
    "COPY_BLOCKS": "0.28.0",
    "KVConnectorTransferResults": "0.30.0",
    "_kv_cache_manager": "0.30.0",
    "_num_nans": "0.28.0",
    **dict.fromkeys(
        ("drop_stale_output", "num_in_flight_tokens", "num_stale_output_tokens"), "0.28.0"
    ),  # of D's scheduler
    **dict.fromkeys(
        ("aux_output_config", "enable_return_routed_experts"), "0.31.0"
    ),  # before, of the model's configuration
    "watermark_config": "0.30.0",
    "return_sampling_mask": "0.28.0",
    "enable_moe_shared_loras": "0.28.0",
    "_make_model_runner": "0.32.0",  # before, `in_place_of`
    "finish_forward": "0.30.0",  # before, the V2 runner ends a step after sampling
    "get_loaded_kv_cache_group_ids": "0.32.0",  # before, vLLM zeroes nothing that a connector loads asynchronously
    "get_transfer_results": "0.30.0",  # before, `get_finished` and `get_block_ids_with_load_errors`
    "has_pending_push_work": "0.28.0",  # a decode node needs it
    "kv_cache_layout": "0.29.0",
    "num_prefill_lookahead_tokens": "0.31.0",  # before, MTP drafters are refused
    "main": "0.29.0",  # of the server's entry, which was a script
    "scheduler": "0.30.0",  # of OffloadingConnector, which is refused beside ours but with 0.32
    "use_replayssm": "0.28.0",
    "requires_kv_delivery": "0.28.0",  # before, vLLM drops no token in flight
    **dict.fromkeys(("prefix_match_unit", "supports_divergent_local_hybrid_hits"), "0.28.0"),
}
UNTIL = {"calculate_kv_scales": "0.28.0", "routed_experts_initialized": "0.31.0"}  # the first without

# What is relied on: the first of the one comes before the first of the other.
ORDER = [
    ("layer", "wait_for_layer_load", "MODEL"),
    ("layer", "MODEL", "save_kv_layer"),
    ("first runner", "handle_preemptions", "ZERO"),  # I2: blocks are void before they are written
    ("first runner", "handle_preemptions", "COPY_BLOCKS"),
    ("first runner", "handle_preemptions", "bind_connector_metadata"),
    ("first runner", "bind_connector_metadata", "MODEL"),
    ("first runner", "MODEL", "wait_for_save"),
    ("first runner", "wait_for_save", "build_connector_worker_meta"),
    # The other way round: `VoidsFirst` (`model_runner/worker.py`) calls it first.
    ("second runner", "ZERO", "handle_preemptions"),
    ("second runner", "ZERO", "COPY_BLOCKS"),
    ("second runner", "handle_preemptions", "bind_connector_metadata"),
    ("second runner", "bind_connector_metadata", "MODEL"),
    ("second runner", "SAMPLE", "wait_for_save"),
    ("schedule", "get_num_new_matched_tokens", "update_state_after_alloc"),
    ("schedule", "update_state_after_alloc", "build_connector_meta"),
    ("update", "update_connector_output", "take_events"),  # the last hook of a step
    ("engine", "STEP", "SLEEP"),  # `wake.py` ends this sleep
]


def is_older(version: str, than: str) -> bool:
    """Whether one version came before another."""
    one, other = ([*map(int, each.split("."))] for each in (version, than))
    return one < other


def lacks(version: str, name: str) -> bool:
    """Whether we know that a version is without a name."""
    before, after = SINCE.get(name), UNTIL.get(name)
    return bool(before and is_older(version, before)) or bool(after and not is_older(version, after))


def helpers(code: Code) -> set[str]:
    """Private methods of ours that replace none of vLLM's, in any version."""
    own = {each.key for each in code.overrides() if each.name[0] == "_" and not each.calls_super}
    return {key for key in own if not any(key in facts.names for facts in KNOWN.values())}


def absent(code: Code, facts: Facts) -> set[str]:
    """Where our code relies on a name that a version does not have, though we do not know of that, or the other way round."""
    known_absent = {each.key for each in imports() if each.is_guarded} | helpers(code)
    places = {each.key: each.at for each in code.uses()}
    keys = [key for key in wanted(code) if key not in known_absent]
    return {
        f"{key}, {places.get(key, 'see `used.py`')}"
        for key in keys
        if (key not in facts.names) != lacks(facts.version, key.rpartition(".")[2])
    }


def misfits(found: list[Override], facts: Facts) -> list[str]:
    """Say which calls of a version's some method of ours cannot take: such as it makes, and such as its own method allows."""
    return [
        f"{each.key}({call}), {each.at}: {why}"
        for each in found
        if (parameters := facts.names.get(each.key)) and (each.name != "__init__" or each.calls_super)
        for call in {*calls_allowed_by(parameters), *(facts.calls_of(each.name) if BATON in each.at else ())}
        if (why := problem(each.parameters, call))
    ]


@pytest.mark.parametrize("version", KNOWN)
def test_every_name_that_we_rely_on_is_there(version: str) -> None:
    """Imported, called, read, replaced or overridden; or its absence is known, and provided for."""
    assert absent(ours(), KNOWN[version]) == set(), READ_AGAIN


@pytest.mark.parametrize("version", KNOWN)
def test_vllm_can_call_every_method_that_we_override(version: str) -> None:
    """As its scheduler and workers do, and as its own methods promise: by position and by name."""
    assert misfits(ours().overrides(), KNOWN[version]) == []


@pytest.mark.parametrize("version", KNOWN)
def test_vllm_takes_every_call_of_ours(version: str) -> None:
    """Of its functions and methods, by position and by name."""
    names = KNOWN[version].names
    calls = [(each, names.get(each.key)) for each in ours().reliances() if each.call]

    assert [
        f"{each.key}({each.call}), {each.at}" for each, has in calls if has and each.call and problem(has, each.call)
    ] == []


@pytest.mark.parametrize("version", KNOWN)
def test_what_we_replace_is_still_looked_up(version: str) -> None:
    """By vLLM's functions when they run: else the replacement would do nothing."""
    facts = KNOWN[version]

    assert {each.key for each in ours().reliances() if each.is_replaced and ":" not in each.key} == {*facts.readers}
    assert [key for key, found in facts.readers.items() if not found] == []
    assert "vllm.v1.engine.core._process_engine_step" in facts.readers["vllm.v1.engine.core.time"]


@pytest.mark.parametrize("version", KNOWN)
def test_hooks_are_called_in_the_order_that_we_rely_on(version: str) -> None:
    """Within one step of the model runners, of the scheduler and of the engine."""
    order = KNOWN[version].order
    places = {step: {name: at for at, name in reversed([*enumerate(found)])} for step, found in order.items()}

    assert {*order} == {*STEPS}
    assert [
        rule
        for rule in ORDER
        if not places[rule[0]].get(rule[1], 99) < places[rule[0]].get(rule[2], -1) and not lacks(version, rule[2])
    ] == []


def test_nothing_is_excepted_that_our_code_does_not_have() -> None:
    """The lists of exceptions are as short as they can be."""
    names = {each.name for each in ours().uses()} | {each.name for each in imports()}

    assert {*NOT_VLLMS} <= names
    steps = {name for step in KNOWN[NEWEST].order.values() for name in step}
    assert {*SINCE, *UNTIL} <= names | steps | {key.rpartition(".")[2] for key in wanted()}


@pytest.mark.parametrize("folder", [installed(), *unpacked()], ids=lambda folder: folder.name)
def test_the_facts_of_a_version_are_those_of_its_source(folder: Path) -> None:
    """Of the installed one, and of others that are unpacked: another version, or another name, has to be looked at."""
    found = read(folder)

    assert found.version in KNOWN, READ_AGAIN
    assert found == KNOWN[found.version], READ_AGAIN
