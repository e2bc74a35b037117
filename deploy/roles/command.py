"""`baton roles`: looks at the load of all proxies' nodes, and orders one change of a node's role at a time."""

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from pydantic import ValidationError
from yarl import URL

from baton.contracts.configuration.load import HINTS, ConfigError, choose_file, flag_name, load
from baton.contracts.configuration.schema import RolesConfig
from baton.contracts.configuration.show import meanings
from baton.deploy.admin_command import AdminError, admin_client, authorization, message_of, verification
from baton.deploy.own_url import own_url
from baton.deploy.roles.decision import Change, Decider
from baton.deploy.roles.fleet import Order, RolesError, SilentError, check_whole, differences, members_of, unchanged_s
from baton.proxy.http.address import is_base_url
from baton.proxy.nodes.dns import SCHEME, look_up
from baton.proxy.nodes.views import AdminState
from baton.proxy.telemetry.log_format import configure

logger = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
EXIT_REFUSED: Final = 2
TIMEOUT_S: Final = 5.0  # without a byte of a proxy's answer
_UNAUTHORISED: Final = (401, 403)


class RefusedError(RolesError):
    """A proxy has refused an order."""


class TokenError(RolesError):
    """A proxy does not take the admin token: no later look can help."""


class Controller:
    """Carries out what is decided; `check_load` is one round."""

    def __init__(self, client: httpx.Client, proxies: Sequence[str], rules: RolesConfig) -> None:
        self._client = client
        self._proxies = proxies
        self._rules = rules
        self._decider = Decider(rules)
        self._problem = ""

    def check_load(self) -> None:
        """Order what is to be ordered now; a look that fails orders nothing. Raises `TokenError`: none can succeed."""
        try:
            self._check_load()
            problem = ""
        except TokenError:
            raise
        except RolesError as exc:
            self._decider.choose_change(time.monotonic(), ())
            problem = str(exc)
        if problem and problem != self._problem:
            logger.warning("nothing is ordered", extra={"reason": problem})
        self._problem = problem

    def _check_load(self) -> None:
        states = {proxy: self._state(proxy) for proxy in sorted(set(addresses(self._proxies)))}
        check_whole(states)
        if orders := differences(states):
            self._decider.choose_change(time.monotonic(), ())
            self._follow(orders)
            return
        members = members_of(states)
        logger.debug("looked", extra={"members": [(m.url, m.role, m.prefill_load, m.decode_load) for m in members]})
        change = self._decider.choose_change(time.monotonic(), members, unchanged_s(states))
        if change is None:
            return
        logger.info("a node changes its role", extra=_reasons(change))
        for proxy in states:
            self._order(Order(proxy, change.url, change.role), unchanged_for_s=self._rules.cooldown_s)

    def _follow(self, orders: Sequence[Order]) -> None:
        """Tell all that differs, whatever is refused: one order may make room for another one."""
        problems = []
        for order in orders:
            logger.info("a proxy is told what others know", extra=order._asdict())
            try:
                self._order(order)
            except (SilentError, RefusedError) as exc:
                problems.append(exc)
        if problems:
            raise problems[0]

    def _state(self, proxy: str) -> AdminState:
        try:
            return AdminState.model_validate(self._ask(proxy, "GET", "/admin/state"))
        except ValidationError as exc:
            raise SilentError(f"{proxy} is of another version: {exc.errors()[0]['loc']}") from exc

    def _order(self, order: Order, *, unchanged_for_s: float = 0.0) -> None:
        body = {"url": order.url, "role": order.role, "unchanged_for_s": unchanged_for_s, "ago_s": order.ago_s}
        self._ask(order.proxy, "POST", "/admin/nodes/role", json=body)

    def _ask(self, proxy: str, method: str, path: str, **more: Any) -> Any:
        try:
            response = self._client.request(method, proxy + path, **more)
            content = response.json()
        except (httpx.HTTPError, ValueError) as exc:
            raise SilentError(f"{proxy} does not answer: {type(exc).__name__}") from exc
        if response.status_code in _UNAUTHORISED:
            raise TokenError(f"{proxy} does not take the admin token, or has none: {response.status_code}")
        if response.is_error:
            raise RefusedError(f"{proxy} answers {response.status_code}: {message_of(content)}")
        return content


def addresses(proxies: Sequence[str]) -> list[str]:
    """Return the base URLs that are meant. Raises `SilentError`: a name has no address."""
    found = []
    for proxy in proxies:
        url = URL(proxy)
        if url.scheme != SCHEME:
            found.append(proxy.rstrip("/"))
            continue
        try:
            hosts = look_up(url.host or "", url.port or 0)
        except OSError as exc:
            raise SilentError(f"{proxy} cannot be resolved: {exc.strerror}") from exc
        found += [own_url(host, url.port or 0) for host in hosts]
    return found


def main(argv: Sequence[str], transport: httpx.BaseTransport | None = None) -> int:
    """Look until a signal ends the process, or no look can succeed; return 1 then, 2 if it is refused at once."""
    options = command_line().parse_args(argv)
    try:
        config = load(overrides(options), os.environ, choose_file(options.file)).config
        headers = authorization(options.token_file or config.proxy.admin_token_file)
        verify = verification(named=bool(config.roles.proxies), ca_file=options.ca_file)
        if wrong := [url for url in config.roles.proxies if not _is_proxy(url)]:
            raise RolesError(f"{wrong[0]!r} is neither of the form http://host:port nor {SCHEME}://name:port")
    except (RolesError, AdminError, ConfigError, OSError, UnicodeDecodeError) as exc:
        print(f"baton roles: {exc}", file=sys.stderr)
        return EXIT_REFUSED
    configure(config.proxy.log_level, config.proxy.log_format)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    own = own_url(config.proxy.host, config.proxy.port, is_encrypted=config.proxy.tls_cert_file is not None)
    with admin_client(headers, verify, TIMEOUT_S, transport) as client:
        controller = Controller(client, config.roles.proxies or (own,), config.roles)
        try:
            while True:
                controller.check_load()
                time.sleep(config.roles.interval_s)
        except TokenError as exc:
            print(f"baton roles: {exc}", file=sys.stderr)
            return EXIT_FAILED


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton roles", description="Have nodes change their roles by load.")
    parser.add_argument("--config", dest="file", type=Path, metavar="FILE", help="default: baton.yaml, if there is one")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="default: proxy.admin_token_file")
    parser.add_argument("--ca-file", metavar="FILE", help="certificate authorities (PEM) to verify proxies with")
    told = meanings()
    for key in keys():
        parser.add_argument(flag_name(key), dest=key, metavar="VALUE", help=told[key].replace("%", "%%"))
    return parser


def keys() -> list[str]:
    return [key for key in HINTS if key.startswith("roles.")]


def overrides(options: argparse.Namespace) -> Mapping[str, str]:
    return {key: value for key, value in vars(options).items() if "." in key and value is not None}


def _is_proxy(url: str) -> bool:
    return is_base_url(url) or (url.startswith(f"{SCHEME}://") and URL(url).port is not None)


def _reasons(change: Change) -> dict[str, Any]:
    now, then = change.now, change.then
    return {
        "url": change.url,
        "role": change.role,
        "model": change.model,
        **{name: round(value, 2) for name, value in now._asdict().items()},
        "worst": round(now.worst, 2),
        "predicted": round(then.worst, 2),
    }
