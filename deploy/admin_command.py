"""`baton admin`: the proxy's admin API as a command, with the token of `proxy.admin_token_file`."""

import argparse
import json
import os
import ssl
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from baton.contracts.configuration.load import ConfigError, choose_file, load
from baton.deploy.own_url import own_url

EXIT_FAILED: Final = 1
EXIT_REFUSED: Final = 2
TIMEOUT_S: Final = 60.0  # without a byte of the answer; loading an adapter on every node takes seconds
COLUMNS: Final = ("role", "url", "state", "requests", "models", "reason")


class AdminError(Exception):
    """The admin API cannot be asked, or has refused; the message is one sentence."""


def main(argv: Sequence[str], transport: httpx.BaseTransport | None = None) -> int:
    options = command_line().parse_args(argv)
    try:
        proxy = load({}, os.environ, choose_file(options.config)).config.proxy
        headers = authorization(options.token_file or proxy.admin_token_file)
        verify = verification(named=options.url is not None, ca_file=options.ca_file)
    except (AdminError, ConfigError, OSError, UnicodeDecodeError) as exc:
        print(f"baton admin: {exc}", file=sys.stderr)
        return EXIT_REFUSED
    url = options.url or own_url(proxy.host, proxy.port, is_encrypted=proxy.tls_cert_file is not None)
    with admin_client(headers, verify, TIMEOUT_S, transport, url) as client:
        try:
            options.run(client, options)
        except AdminError as exc:
            print(f"baton admin: {exc}", file=sys.stderr)
            return EXIT_FAILED
    return 0


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton admin", description="See and change the nodes of a running proxy.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: baton.yaml, if there is one")
    parser.add_argument("--url", help="base URL of the proxy; default: this machine's, as configured")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="default: proxy.admin_token_file")
    parser.add_argument("--ca-file", metavar="FILE", help="certificate authorities (PEM) to verify --url with")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[httpx.Client, argparse.Namespace], None], purpose: str, *names: str) -> Any:
        command = commands.add_parser(name, help=purpose, description=purpose)
        for argument in names:
            command.add_argument(argument)
        command.set_defaults(run=run)
        return command

    add("nodes", _print_nodes, "list the nodes").add_argument("--json", action="store_true", help="print JSON")
    add("state", _print_state, "print the proxy's state as JSON")
    add("add", _add_node, "make a node a member, or give a drained or removed one work again", "role", "node_url")
    add("remove", _remove_node, "make a node leave; its requests go on", "node_url")
    drained = "give a node no more work; its requests go on and it stays a member"
    add("drain", partial(_order, path="drain", draining=True), drained, "node_url")
    evacuate = partial(_order, path="evacuate", also="drain")
    evacuated = add("evacuate", evacuate, "have a decode node's streams go on on others", "node_url")
    evacuated.add_argument("--drain", action="store_true", help="and give it no more work")
    role = partial(_order, path="role", also="role")
    add("role", role, "have a node with transfer.both_ways serve in the other role", "role", "node_url")
    add("undrain", partial(_order, path="drain", draining=False), "give a drained node work again", "node_url")
    for name, purpose, path, names in (
        ("load-adapter", "load a LoRA adapter on the nodes", "/v1/load_lora_adapter", ("name", "path")),
        ("unload-adapter", "unload a LoRA adapter", "/v1/unload_lora_adapter", ("name",)),
    ):
        adapter = add(name, partial(_change_adapter, path=path), purpose, *names)
        adapter.add_argument("--base-model", help="served model that it belongs to, if the proxy has several")
    reset = partial(_ask_every_node, path="/reset_prefix_cache")
    add("reset-prefix-cache", reset, "empty the prefix cache of every node")
    return parser


def authorization(token_file: Path | None) -> dict[str, str]:
    if token_file is None:
        raise AdminError("set proxy.admin_token_file, or name the file with --token-file")
    return {"Authorization": f"Bearer {token_file.read_text(encoding='utf-8').strip()}"}


def admin_client(
    headers: dict[str, str], verify: Any, timeout_s: float, transport: httpx.BaseTransport | None, base_url: str = ""
) -> httpx.Client:
    """Make a client that asks directly: the token is not for the HTTP proxy that the environment names."""
    return httpx.Client(
        base_url=base_url, headers=headers, timeout=timeout_s, verify=verify, transport=transport, trust_env=False
    )


def verification(*, named: bool, ca_file: str | None) -> Any:
    """Verify what was named; this machine's own proxy has a certificate for another name than loopback's."""
    if ca_file is None and not named:
        return False
    try:
        # The former heeds SSL_CERT_FILE, as a client without `trust_env` does not.
        return httpx.create_ssl_context() if ca_file is None else ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        source = ca_file or "of SSL_CERT_FILE or SSL_CERT_DIR"
        raise AdminError(f"certificate authorities {source} cannot be read: {exc.strerror or exc}") from exc


def _ask(client: httpx.Client, method: str, path: str, **kwargs: Any) -> Any:
    try:
        response = client.request(method, path, **kwargs)
        content = response.json()
    except httpx.HTTPError as exc:
        raise AdminError(f"{client.base_url} does not answer: {str(exc) or type(exc).__name__}") from exc
    except ValueError as exc:
        raise AdminError(f"{client.base_url} is no Baton proxy: its answer is not JSON") from exc
    if response.is_error:
        raise AdminError(message_of(content) or f"{client.base_url}{path} answers {response.status_code}")
    return content


def message_of(content: Any) -> str:
    """Return what an error's body says, "" if it is no proxy's."""
    error = content.get("error") if isinstance(content, dict) else None
    return str(error.get("message") or "") if isinstance(error, dict) else ""


def _print_table(nodes: Sequence[dict[str, Any]]) -> None:
    rows = [COLUMNS, *(tuple(_cell(node.get(name, "")) for name in COLUMNS) for node in nodes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def _print_nodes(client: httpx.Client, options: argparse.Namespace) -> None:
    nodes = _ask(client, "GET", "/admin/nodes")["nodes"]
    if options.json:
        print(json.dumps(nodes, indent=2))
    else:
        _print_table(nodes)


def _print_state(client: httpx.Client, _: argparse.Namespace) -> None:
    print(json.dumps(_ask(client, "GET", "/admin/state"), indent=2))


def _add_node(client: httpx.Client, options: argparse.Namespace) -> None:
    _print_table([_ask(client, "POST", "/admin/nodes", json={"url": options.node_url, "role": options.role})])


def _remove_node(client: httpx.Client, options: argparse.Namespace) -> None:
    _print_table(_ask(client, "DELETE", "/admin/nodes", params={"url": options.node_url})["nodes"])


def _order(client: httpx.Client, options: argparse.Namespace, *, path: str, also: str = "", **fixed: bool) -> None:
    """Order something of a node; `also`: what the command line says besides its URL."""
    order = {"url": options.node_url, **fixed} | ({also: getattr(options, also)} if also else {})
    _print_table(_ask(client, "POST", f"/admin/nodes/{path}", json=order)["nodes"])


def _change_adapter(client: httpx.Client, options: argparse.Namespace, *, path: str) -> None:
    body = {
        "lora_name": options.name,
        "lora_path": getattr(options, "path", None),
        "base_model_name": options.base_model,
    }
    _ask_every_node(client, options, path=path, json={name: value for name, value in body.items() if value})


def _ask_every_node(client: httpx.Client, _: argparse.Namespace, *, path: str, **kwargs: Any) -> None:
    for node in _ask(client, "POST", path, **kwargs)["nodes"]:
        print(f"{node['role']} {node['url']}: {node['answer'] or node['status']}")
