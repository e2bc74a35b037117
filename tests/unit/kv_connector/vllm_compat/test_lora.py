"""Two nodes agree on an adapter only if both have loaded the same files, and apply them alike."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from vllm.v1.executor.abstract import Executor

from baton.kv_connector.vllm_compat.lora import Adapters, adapters_of, settings_of, watch

WEIGHTS = "adapter_model.safetensors"


def adapter(folder: Path | str, *, number: int = 1, again: bool = False, **more: Any) -> Any:
    """As much of vLLM's `LoRARequest` as is read."""
    return SimpleNamespace(lora_name="tuned", lora_int_id=number, lora_path=str(folder), load_inplace=again, **more)


def written(folder: Path, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(weights)
    return folder


def engine_of(lora_config: Any) -> Any:
    """As much of an engine's configuration as is read."""
    return SimpleNamespace(lora_config=lora_config, cache_config=SimpleNamespace(enable_prefix_caching=True))


def loaded(*what: Any, settings: str = "") -> Adapters:
    node = Adapters(settings)
    for each in what:
        with node.loading(each):
            pass
    return node


@pytest.fixture
def ours(tmp_path: Path) -> Any:
    """An adapter whose files lie in the folder `a`."""
    return adapter(written(tmp_path / "a", b"first"))


@pytest.mark.parametrize("size", [10, 3_000_000], ids=["small", "large"])
def test_an_adapter_is_what_its_files_are(tmp_path: Path, size: int) -> None:
    """Two nodes may keep it in different places, but must not have different ones under one name."""
    weights = bytes(size)
    middle = size // 2
    names = [
        loaded(each).name_of(each)
        for each in (
            adapter(written(tmp_path / "a", weights)),
            adapter(written(tmp_path / "b", weights), number=7),
            adapter(written(tmp_path / "c", weights[:middle] + b"x" + weights[middle + 1 :])),
        )
    ]

    assert names[0] == names[1] != names[2]


def test_a_file_that_is_replaced_does_not_replace_what_was_loaded(tmp_path: Path, ours: Any) -> None:
    """On a volume of both, D loads what P has not: neither goes by the file that it sees now, and they do not agree."""
    prefill, stays = loaded(ours), loaded(ours)
    before = prefill.name_of(ours)

    written(tmp_path / "a", b"another")
    decode = loaded(ours)

    assert prefill.name_of(ours) not in (before, decode.name_of(ours))
    assert prefill.name_of(ours) != stays.name_of(ours)  # which of them had to load it again is unknown


def test_the_prefix_cache_keeps_the_kv_of_what_was_loaded_before(tmp_path: Path) -> None:
    """`load_inplace`: a node that has one may give out KV of either; from a new place, all is well again."""
    ours = adapter(written(tmp_path / "a", b"first"), again=True)
    forgetful, keeping = Adapters(keeps_kv=False), Adapters()
    for weights in (b"first", b"another"):
        written(tmp_path / "a", weights)
        for node in (forgetful, keeping):
            with node.loading(ours):
                pass
    fresh = loaded(ours).name_of(ours)
    elsewhere = adapter(written(tmp_path / "b", b"another"), again=True)

    assert forgetful.name_of(ours) == fresh != keeping.name_of(ours)
    with keeping.loading(elsewhere):
        pass
    assert keeping.name_of(elsewhere) == fresh


def test_an_adapter_that_is_loaded_again_unchanged_is_the_same(tmp_path: Path, ours: Any) -> None:
    """Under another number, after it was unloaded, and in place."""
    twice = adapter(tmp_path / "a", number=2)
    node = loaded(ours, twice, adapter(tmp_path / "a", again=True))

    assert node.name_of(ours) == node.name_of(twice) == loaded(ours).name_of(ours)


@pytest.mark.parametrize("how", ["named again", "the load fails", "changed during the load"])
def test_files_that_have_not_been_read_are_not_what_was_loaded(tmp_path: Path, how: str) -> None:
    """Each of several API servers names an adapter, which is read once; after a failure vLLM keeps the former; or it is unknown what was read."""
    ours = adapter(written(tmp_path / "a", b"first"), again=how == "the load fails")
    node = Adapters(keeps_kv=False)
    with node.loading(ours):
        if how == "changed during the load":
            written(tmp_path / "a", b"another")
    if how != "changed during the load":
        written(tmp_path / "a", b"another")
        with suppress(ValueError), node.loading(ours):
            if how == "the load fails":
                raise ValueError

    assert node.name_of(ours) != loaded(ours).name_of(ours)


def test_a_file_that_changes_while_it_is_read_is_not_what_was_loaded(
    tmp_path: Path, ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where it has its size: the engine has loaded what was there before."""
    digest = hashlib.file_digest

    def replaced_after(file: Any, kind: Any) -> Any:
        found = digest(file, kind)
        written(tmp_path / "a", b"other")
        return found

    with monkeypatch.context() as during:
        during.setattr(hashlib, "file_digest", replaced_after)
        node = loaded(ours)

    assert node.name_of(ours) != loaded(ours).name_of(ours)


def test_a_file_that_was_touched_or_written_again_is_the_same(tmp_path: Path, ours: Any) -> None:
    """It is read again, and goes on being exchanged."""
    node = loaded(ours)
    before = node.name_of(ours)

    os.utime(written(tmp_path / "a", b"first") / WEIGHTS, ns=(1, 1))

    assert node.name_of(ours) == before


def test_an_adapter_is_known_from_its_first_prompt_on_at_the_latest(ours: Any) -> None:
    """Should vLLM load one in a way that we do not see."""
    node = Adapters()

    assert node.name_of(ours) == loaded(ours).name_of(ours)


def test_each_setting_counts_that_changes_what_an_adapter_does(tmp_path: Path, ours: Any) -> None:
    """The same files in another dtype, or for other modules, make other KV; the order of modules makes none."""
    plain = {"lora_dtype": "torch.float32", "target_modules": ["q_proj", "o_proj"]}
    changes: list[dict[str, Any]] = [
        {},
        {"target_modules": ["o_proj", "q_proj"], "enable_moe_shared_loras": False},
        {"lora_dtype": "torch.bfloat16"},
        {"target_modules": None},
        {"enable_moe_shared_loras": True},
    ]
    settings = [settings_of(engine_of(SimpleNamespace(**plain | change))) for change in changes]
    names = [loaded(ours, settings=each).name_of(ours) for each in settings]

    assert names[0] == names[1]
    assert len(set(names)) == 4
    packed = adapter(tmp_path / "a", is_3d_lora_weight=True)
    assert loaded(packed).name_of(packed) != loaded(ours).name_of(ours)


def test_an_adapter_of_the_hub_is_what_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id says nothing of the revision; before it is loaded there are no files."""
    names = []
    for node, weights in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        fetched = {"here": False}

        def find(_: str, file: str, node: str = node, fetched: dict[str, bool] = fetched) -> str | None:
            return str(tmp_path / node / file) if fetched["here"] else None

        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", find)
        ours, adapters = adapter("org/tuned"), Adapters()
        with adapters.loading(ours):
            written(tmp_path / node, weights)
            fetched["here"] = True
        names.append(adapters.name_of(ours))

    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("path", ["org/nowhere", "no id: of anything", "/no/such/folder"])
def test_an_adapter_whose_files_cannot_be_found_is_like_no_other(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not even like the one of the same name elsewhere; the log says so once."""
    ours = adapter(path)
    node = loaded(ours)

    assert node.name_of(ours) == node.name_of(ours) != loaded(ours).name_of(ours)
    assert len([record for record in caplog.records if path in record.getMessage()]) == 1


def executor(load: Callable[[Any], bool]) -> Any:
    """A class as vLLM's executors are."""
    return type("Executor", (), {"add_lora": lambda _, request: load(request)})


def test_loads_are_seen_where_vllm_makes_them(ours: Any) -> None:
    """By the last that asked to be told, once, and what vLLM answers is passed on."""
    told: list[Any] = []

    def load(request: Any) -> bool:
        told.append(request)
        return True

    vllm = executor(load)
    earlier, node = Adapters(), Adapters()
    watch(earlier, vllm)
    watch(node, vllm)

    assert vllm().add_lora(ours) is True

    assert told == [ours]
    assert list(node._loaded) == [1]
    assert not earlier._loaded


def test_an_engine_with_adapters_sees_what_it_loads(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without them is left alone: nothing of vLLM's is replaced."""

    def before(_self: Executor, _request: Any) -> bool:
        return True

    monkeypatch.setattr(Executor, "add_lora", before)
    none = adapters_of(engine_of(None))
    assert Executor.add_lora is before
    assert none.name_of(ours) == loaded(ours).name_of(ours)

    node = adapters_of(engine_of(SimpleNamespace()))
    Executor.add_lora(Mock(), ours)

    assert list(node._loaded) == [1]
