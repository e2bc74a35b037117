"""The first request that `baton serve` prints: it must work as printed, with API keys and TLS too."""

import json
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

KEY_VARIABLE = "OPENAI_API_KEY"  # no BATON_…: those are settings, and unknown ones are refused
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRequest:
    """What a client on this machine needs to be served."""

    url: str
    model: str  # as clients call it
    token_file: Path  # of the admin API and the dashboard
    needs_key: bool = False
    needs_certificate: bool = False  # of the client
    # That the proxy's certificate verifies with; None under TLS: it does not on this address.
    ca_file: Path | None = None


def trusted_ca(url: str, cert_file: Path | None) -> Path | None:
    """Return the proxy's own certificate file if a client that trusts it alone can verify the proxy at `url`."""
    if cert_file is None:
        return None
    address = urlsplit(url)
    try:
        context = ssl.create_default_context(cafile=str(cert_file))
        with (
            socket.create_connection((address.hostname, address.port), timeout=CONNECT_TIMEOUT_S) as raw,
            context.wrap_socket(raw, server_hostname=address.hostname),
        ):
            return cert_file.resolve()
    except (OSError, ValueError):
        return None


def welcome(first: FirstRequest) -> str:
    """Return a curl command and a Python program for a first request, and where the dashboard is."""
    model = json.dumps(first.model)
    body = json.dumps({"model": first.model, "prompt": "The tide", "max_tokens": 32}).replace("'", r"'\''")
    lines = [
        "",
        f"Serving {first.model} at {first.url}/v1, prompts and tokens on separate nodes. Ctrl-C stops it.",
        *([f"Put one of the API keys into {KEY_VARIABLE} first."] if first.needs_key else []),
        *(["Replace client.pem and client.key by your certificate and its key."] if first.needs_certificate else []),
        "",
        f"  curl {_curl_options(first)}{first.url}/v1/completions -H 'Content-Type: application/json' \\",
        *([f'    -H "Authorization: Bearer ${KEY_VARIABLE}" \\'] if first.needs_key else []),
        f"    -d '{body}'",
        "",
        *_python(first, model),
        "",
        f"The dashboard: {first.url}/dashboard, with the token in {first.token_file}",
        "",
    ]
    return "\n".join(lines)


def _curl_options(first: FirstRequest) -> str:
    if not first.url.startswith("https:"):
        return ""
    trust = f"--cacert {first.ca_file} " if first.ca_file else "--insecure "
    return trust + ("--cert client.pem --key client.key " if first.needs_certificate else "")


def _python(first: FirstRequest, model: str) -> list[str]:
    key = f'os.environ["{KEY_VARIABLE}"]' if first.needs_key else '"none"'
    http_client = ""
    if first.url.startswith("https:"):
        verify = f"ssl.create_default_context(cafile={json.dumps(str(first.ca_file))})" if first.ca_file else "False"
        certificate = ', cert=("client.pem", "client.key")' if first.needs_certificate else ""
        http_client = f", http_client=httpx.Client(verify={verify}{certificate})"
    imports = [
        *(["import os"] if first.needs_key else []),
        *(["import ssl"] if "ssl." in http_client else []),
        *(["import httpx"] if http_client else []),
        "from openai import OpenAI",
    ]
    return [
        *(f"  {line}" for line in imports),
        f'  client = OpenAI(base_url="{first.url}/v1", api_key={key}{http_client})',
        f'  answer = client.completions.create(model={model}, prompt="The tide", max_tokens=32)',
        "  print(answer.choices[0].text)",
    ]
