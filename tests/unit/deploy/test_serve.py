import re
import socket
import stat
from pathlib import Path

import pytest

from baton.contracts.configuration.load import load
from baton.contracts.secret import read_secret
from baton.deploy import serve
from baton.deploy.serve import taken
from baton.deploy.stack import Surroundings, plan
from tests.support.ports import free_port


def test_flags_are_split_between_the_launcher_and_the_nodes() -> None:
    """What the launcher does not know goes on to the nodes; a shortened flag is not taken for one of ours."""
    options = serve.parse(["--prefill", "2", "--port", "9000", "--dtype", "float32", "--pre", "1", "--verbose"])

    assert options.overrides == {"serve.prefill": "2", "proxy.port": "9000"}
    assert options.node_flags == ("--dtype", "float32", "--pre", "1")
    assert options.everything
    assert options.file is None
    both = serve.parse(["--model", "org/model"]).overrides
    assert both == {"prefill_node.model": "org/model", "decode_node.model": "org/model"}


def test_a_secret_is_the_one_that_is_given_or_of_this_run_and_user(tmp_path: Path) -> None:
    """The cluster's, and the token of the admin API."""
    made = serve.given_or_made(None, tmp_path / "secret")

    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert len(read_secret(made).values[0]) == 43
    assert serve.given_or_made(tmp_path / "mine", tmp_path / "made") == tmp_path / "mine"


def test_a_taken_port_is_named_with_the_flag_that_moves_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The start is refused with a sentence, and nothing has been started."""
    with socket.create_server(("127.0.0.1", 0)) as taken_socket:
        port = taken_socket.getsockname()[1]

        assert serve.main(["--port", str(port)]) == serve.EXIT_REFUSED

    message = capsys.readouterr().err
    assert (
        f"the proxy port {port} on 127.0.0.1 is not free: Address already in use; choose another with --port" in message
    )


@pytest.mark.parametrize(
    ("host", "complaints"),
    [
        ("127.0.0.1", []),  # free; one that was in use a moment ago does not count
        ("192.0.2.1", ["the proxy port 8000 on 192.0.2.1 cannot be bound: Cannot assign requested address"]),
    ],
)
def test_only_ports_of_this_machine_that_are_free_will_do(host: str, complaints: list[str]) -> None:
    names = ("serve.prefill_base_port", "serve.decode_base_port", "prefill_node.control_port")
    ports = {name: free_port() for name in names} | {"proxy.port": 8000 if complaints else free_port()}
    config = load({"proxy.host": host, **ports}, {}, None).config

    found = list(taken(plan(config, Surroundings(file=None, secret_file=Path("secret")))))
    assert [told.partition(";")[0] for told in found] == complaints


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--port", "x"], "flag --port: expected an integer between 0 and 65535, found 'x'"),
        (["--decode", "0"], "flag --decode: expected an integer at least 1, found '0'"),
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--config", "/no/such/file.yaml"], "cannot read /no/such/file.yaml"),
        (["--secret-file", "/no/such/secret"], "/no/such/secret"),
        (["-tp", "2", "--nnodes", "2", "--master-addr", "10.0.0.1"], "start them on each host yourself"),
        (["--distributed-executor-backend", "ray"], "Ray would give all ranks the first host's addresses"),
    ],
)
def test_what_cannot_be_served_is_refused(capsys: pytest.CaptureFixture[str], argv: list[str], expected: str) -> None:
    """Mistakes end in one sentence and exit status 2."""
    assert serve.main(argv) == serve.EXIT_REFUSED

    assert expected in capsys.readouterr().err


def test_more_nodes_than_there_is_memory_for_are_refused_with_both_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts."""
    monkeypatch.setattr(serve, "available_bytes", lambda: 3000 << 20)

    assert serve.main(["--port", str(free_port()), "--decode", "200"]) == serve.EXIT_REFUSED

    assert re.search(r"201 nodes need about \d+,\d{3} MiB .*, and 3,000 MiB are free", capsys.readouterr().err)
