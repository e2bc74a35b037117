import json
from pathlib import Path

import pytest

from baton.node.startup.weights import digest, digest_of_files, model_directory, read_model_config

MIB = 1024 * 1024


def write_model(folder: Path, *, size: int = 1000, header: bytes = b"{}", **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": 64, **config}))
    content = bytearray(size)
    content[: 8 + len(header)] = len(header).to_bytes(8, "little") + header
    (folder / "model.safetensors").write_bytes(content)
    return folder


def poke(folder: Path, offset: int) -> None:
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.seek(offset)
        stream.write(b"\x01")


def test_copies_of_a_model_have_one_digest(tmp_path: Path) -> None:
    """Neither the folder's name, nor the order of keys, nor what wrote the file counts."""
    one = write_model(tmp_path / "one", a=1, b=2, _name_or_path="x", transformers_version="4")
    two = write_model(tmp_path / "two", b=2, a=1, transformers_version="5")

    assert digest_of_files(one) == digest_of_files(two)


def test_another_configuration_or_any_byte_of_a_small_file_counts(tmp_path: Path) -> None:
    """The same weights with other RoPE settings are another model."""
    one, other = write_model(tmp_path / "one", theta=1), write_model(tmp_path / "other", theta=2)
    same = write_model(tmp_path / "same", theta=1)
    poke(same, 777)

    assert len({digest_of_files(each) for each in (one, other, same)}) == 3


@pytest.mark.parametrize("offset", [20 * MIB - 1, 150_000, 20 * MIB - 64 * 1024])
def test_a_large_file_counts_by_header_and_samples(tmp_path: Path, offset: int) -> None:
    """All of the header, which has the tensors' names and may be longer than a sample; the end, and what lies between, evenly."""
    header = b'{"a":"' + b"x" * 200_000 + b'"}'
    one = write_model(tmp_path / "one", size=20 * MIB, header=header)
    two = write_model(tmp_path / "two", size=20 * MIB, header=header)
    assert digest_of_files(one) == digest_of_files(two)
    poke(two, offset)

    assert digest_of_files(one) != digest_of_files(two)


def test_size_and_name_count(tmp_path: Path) -> None:
    one, two, three = (write_model(tmp_path / name) for name in ("one", "two", "three"))
    with (two / "model.safetensors").open("ab") as stream:
        stream.write(b"\0")
    (three / "model.safetensors").rename(three / "other.safetensors")

    assert len({digest_of_files(one), digest_of_files(two), digest_of_files(three)}) == 3


def test_a_single_file_has_a_digest(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"abc")

    assert digest(str(tmp_path / "m.gguf"), None, None) == digest_of_files(tmp_path / "m.gguf")
    assert model_directory(str(tmp_path / "m.gguf"), None) is None


def test_a_hub_id_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot's folder is named after the commit, which says all."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    snapshot = tmp_path / "models--o--m" / "snapshots" / ("c0ffee" * 6)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(snapshot / "config.json"))

    assert digest("o/m", model_directory("o/m", None), None) == "c0ffee" * 6


def test_without_network_the_local_cache_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server will serve what is in the cache, so that is the revision."""
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def offline(*_: object, **__: object) -> str:
        raise OSError("no network")

    cached = tmp_path / "abc123" / "config.json"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: str(cached))
    assert model_directory("o/m", None) == tmp_path / "abc123"

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    assert model_directory("o/m", None) is None


def test_an_unresolved_hub_id_stands_for_itself() -> None:
    """With its revision, which may be a commit."""
    assert digest("o/m", None, None) == "o/m@main"
    assert digest("o/m", None, "v2") == "o/m@v2"


def test_a_configuration_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_model_config(None) is None
    assert read_model_config(tmp_path) is None
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        assert read_model_config(tmp_path) is None
