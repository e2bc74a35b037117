"""`baton health`: does the process of this container answer? For health checks; it reads the configuration, and asks loopback."""

import argparse
import http.client
import os
import sys
from collections.abc import Sequence
from typing import Literal, get_args

from baton.contracts.configuration.load import ConfigError, choose_file, load
from baton.contracts.configuration.schema import BatonConfig, ProxyConfig
from baton.deploy.own_url import ask_own, ask_own_proxy
from baton.node.roles import node_config

EXIT_UNHEALTHY = 1  # Docker knows no other
TIMEOUT_S = 3.0
Part = Literal["proxy", "prefill", "decode"]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="baton health", description="Ask the process in this container.")
    parser.add_argument(
        "parts", nargs="+", choices=get_args(Part), metavar="proxy|prefill|decode", help="one of them must answer"
    )
    parser.add_argument("--ready", action="store_true", help="of the proxy: can it serve, or does it only run?")
    options = parser.parse_args(argv)
    try:
        config = load({}, os.environ, choose_file(None)).config
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return EXIT_UNHEALTHY
    problems = [problem_of(part, config, "/ready" if options.ready else "/health") for part in options.parts]
    if "" in problems:
        return 0
    print("; ".join(problems), file=sys.stderr)
    return EXIT_UNHEALTHY


def problem_of(part: Part, config: BatonConfig, path: str) -> str:
    place = config.proxy if part == "proxy" else node_config(part, config)
    try:
        if isinstance(place, ProxyConfig):
            status, _ = ask_own_proxy(place, path, TIMEOUT_S)
        else:
            status, _ = ask_own(place.host, place.port, path, TIMEOUT_S)
    except (OSError, http.client.HTTPException) as exc:
        return f"{part} on port {place.port}: {str(exc) or type(exc).__name__}"
    return "" if status == http.client.OK else f"{part} on port {place.port}: {path} answers {status}"
