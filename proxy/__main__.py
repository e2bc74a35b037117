"""`python -m baton.proxy`: configuration → a running proxy."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from baton.contracts.configuration.load import ConfigError, choose_file, load
from baton.proxy import server
from baton.proxy.http_server.descriptors import raise_limit


def main(argv: list[str] | None = None) -> int:
    arguments = command_line().parse_args(argv)
    raise_limit()
    try:
        config = load(_overrides(arguments), os.environ, choose_file(arguments.config)).config
        server.run(config)
    except (ConfigError, server.StartError) as exc:
        print(f"proxy: {exc}", file=sys.stderr)  # noqa: T201  # logging is not set up yet
        return 2
    return 0


def command_line() -> argparse.ArgumentParser:
    """Return the parser of flags; the `dest` of each is the key of its setting."""
    parser = argparse.ArgumentParser(prog="baton proxy", description="Baton's HTTP front door")
    parser.add_argument("--config", type=Path, help="configuration file; baton.yaml in this directory if there is one")
    parser.add_argument("--host", dest="proxy.host")
    parser.add_argument("--port", dest="proxy.port", type=int)
    parser.add_argument("--workers", dest="proxy.workers", type=int, help="processes that share the port")
    parser.add_argument(
        "--prefill", dest="proxy.prefill", nargs="*", metavar="URL", help="prefill nodes, or dns://name:port"
    )
    parser.add_argument("--decode", dest="proxy.decode", nargs="*", metavar="URL", help="decode nodes")
    parser.add_argument("--when-no-prefill", dest="proxy.when_no_prefill", choices=("decode_local", "refuse"))
    parser.add_argument("--placement", dest="proxy.placement", choices=("by_cost", "pairs"))
    parser.add_argument("--log-level", dest="proxy.log_level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", dest="proxy.log_format", choices=("text", "json"))
    parser.add_argument("--access-log", dest="proxy.access_log", choices=("off", "errors", "all"), help="of requests")
    parser.add_argument("--otlp-endpoint", dest="proxy.otlp_endpoint", metavar="URL", help="collector of traces")
    parser.add_argument("--trace-share", dest="proxy.trace_share", type=float, help="of the requests, 0 to 1")
    parser.add_argument("--secret-file", dest="cluster.secret_file", help="file with the cluster secret")
    parser.add_argument("--admin-token-file", dest="proxy.admin_token_file", help="file with the admin API's token")
    parser.add_argument("--api-keys-file", dest="proxy.api_keys_file", help="file with the clients' API keys")
    parser.add_argument(
        "--tls-cert-file", dest="proxy.tls_cert_file", help="serve over TLS with this certificate chain"
    )
    parser.add_argument("--tls-key-file", dest="proxy.tls_key_file", help="its private key")
    parser.add_argument(
        "--tls-client-ca-file", dest="proxy.tls_client_ca_file", help="clients need a certificate of these"
    )
    return parser


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    given = vars(arguments).items()
    return {key: value for key, value in given if key != "config" and value is not None}


if __name__ == "__main__":
    sys.exit(main())
