"""What stands in for a container engine in the test of compose.yaml: its name server, and the images' variables."""

import socket
import struct

import pytest

from tests.support.compose import seconds
from tests.support.composed.image import image_entrypoint, image_environment, image_folder
from tests.support.composed.resolver import answer

A, AAAA = 1, 28
NO_SUCH_NAME = 3
NODE = {"build": {"dockerfile": "deploy/docker/Dockerfile", "target": "node"}}
NAMES = {"decode": ["198.18.33.2", "198.18.33.3"], "prefill": []}


def query(name: str, kind: int = A) -> bytes:
    """A question as a resolver library sends it."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def read(reply: bytes, question: bytes) -> tuple[int, list[str]]:
    """The reply's code and addresses."""
    number, flags, questions, count, *_ = struct.unpack_from("!6H", reply)
    assert (number, questions) == (7, 1)
    assert reply[12 : len(question)] == question[12:]
    records = reply[len(question) :]
    assert len(records) == 16 * count
    return flags & 15, [socket.inet_ntoa(records[16 * at + 12 : 16 * at + 16]) for at in range(count)]


def test_a_name_has_all_its_addresses() -> None:
    """Whatever the case in which it is asked."""
    code, addresses = read(answer(query("Decode"), NAMES), query("Decode"))

    assert (code, sorted(addresses)) == (0, NAMES["decode"])


@pytest.mark.parametrize("name", ["prefill", "decode.example", "proxy"])
def test_a_name_without_containers_is_none(name: str) -> None:
    """As an engine answers for a service that has none."""
    assert read(answer(query(name), NAMES), query(name)) == (NO_SUCH_NAME, [])


def test_there_is_no_address_of_another_kind() -> None:
    """But the name is there, so that a library goes on with the addresses that it has."""
    assert read(answer(query("decode", AAAA), NAMES), query("decode", AAAA)) == (0, [])


def test_variables_of_an_image_are_those_of_its_stages() -> None:
    """Later ones win; PATH is left to this machine."""
    found = image_environment(NODE)

    assert found["HF_HOME"] == "/models"
    assert found["PYTHONUNBUFFERED"] == "1"
    assert "PATH" not in found


def test_the_entry_point_and_the_folder_of_an_image_are_those_of_its_stages() -> None:
    """They stand in one that both images are made of."""
    assert image_entrypoint(NODE) == ["tini", "--", "baton"]
    assert image_folder(NODE) == "/home/baton"


def test_durations_are_read_as_compose_writes_them() -> None:
    """Hours, minutes, seconds."""
    assert (seconds("30s"), seconds("1m10s"), seconds("1h0m5s")) == (30, 70, 3605)
