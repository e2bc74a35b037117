"""Three walks in a clone that is set up: API keys with TLS, a node that is killed, more nodes than there is memory for."""

import re
import time
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Final

from tests.newcomer.journey import SERVE_S, SERVING, SHORT_S, JourneyError, Step, run_line, served, wrong
from tests.newcomer.machines import Machine
from tests.newcomer.readme import Commands

KEYED: Final = "keys and TLS: to the answers of the printed curl and Python"
KILLED: Final = "a killed decode node: to an answer over both nodes"
TOO_MANY: Final = "more nodes than there is memory for: to the refusal"
NOTICED_S: Final = 10.0  # until the proxy uses a node that is ready again
DASHBOARD: Final = "The dashboard:"  # the last thing that is printed
_MAKE_KEYS: Final = """
cd baton && mkdir -p /tmp/baton-keys && cd /tmp/baton-keys
~/baton/.venv/bin/baton key new alice > said && { echo keys:; sed -n '/^  alice/,/^$/p' said; } > keys.yaml && tail -n 1 said > key
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 \
  -keyout key.pem -out cert.pem 2>&1
"""
_KEYED_SETTINGS: Final = (
    "export BATON_PROXY_API_KEYS_FILE=/tmp/baton-keys/keys.yaml BATON_PROXY_TLS_CERT_FILE=/tmp/baton-keys/cert.pem "
    "BATON_PROXY_TLS_KEY_FILE=/tmp/baton-keys/key.pem"
)
_WITH_KEY: Final = "cd baton && export BATON_API_KEY=$(cat /tmp/baton-keys/key)"
_KILL: Final = """cd baton && .venv/bin/python -c "
import psutil
(pid,) = {each.pid for each in psutil.net_connections() if each.laddr.port == 8200 and each.status == psutil.CONN_LISTEN}
psutil.Process(pid).kill()
" """


def walk_hardships(machine: Machine, commands: Commands, say: Callable[[str], None]) -> Iterator[Step]:
    """Walk all three. Raises `JourneyError`: a command failed, took too long, or said something else than it should."""
    for name, walk in ((KEYED, _keys_and_tls), (KILLED, _killed_node), (TOO_MANY, _too_many)):
        began_s = time.monotonic()
        walk(machine, commands, say)
        yield Step(name=name, seconds=time.monotonic() - began_s)


def _keys_and_tls(machine: Machine, commands: Commands, say: Callable[[str], None]) -> None:
    run_line(machine, _MAKE_KEYS)
    with served(machine, f"{_KEYED_SETTINGS}; {commands.serve}", say) as output:
        printed = "\n".join(text for _, text in output.until(DASHBOARD, time.monotonic() + SHORT_S, say))
        curl = dedent(printed[printed.index("  curl ") :].partition("\n\n")[0])
        python = dedent(printed[printed.index("  import os") :].partition("\n\n")[0])
        answer = run_line(machine, f"{_WITH_KEY}; {curl.replace('curl ', 'curl -si ', 1)}")
        if problem := wrong(answer):
            raise JourneyError(f"{curl}\n{problem}:\n{answer}")
        if not run_line(machine, f"{_WITH_KEY}; .venv/bin/python - <<'PYTHON'\n{python}\nPYTHON").strip():
            raise JourneyError(f"no text came of:\n{python}")


def _killed_node(machine: Machine, commands: Commands, say: Callable[[str], None]) -> None:
    with served(machine, commands.serve, say) as output:
        output.until(DASHBOARD, time.monotonic() + SHORT_S, say)
        run_line(machine, _KILL)
        output.until("decode-0 ready again", time.monotonic() + SERVE_S, say)
        deadline_s = time.monotonic() + NOTICED_S
        while problem := wrong(answer := run_line(machine, f"exec 2>/dev/null; cd baton && {commands.request}")):
            if "\nretry-after: 1" not in answer or time.monotonic() > deadline_s:
                raise JourneyError(f"{commands.request}\nafter a node was killed, {problem}:\n{answer}")
            time.sleep(1)  # as it was told; the proxy probes the node once a second


def _too_many(machine: Machine, commands: Commands, _: Callable[[str], None]) -> None:
    said = run_line(machine, f"cd baton && DECODE=200 {commands.serve}", fails=True)
    if SERVING in said or "Traceback" in said or not re.search(r"\d+ MiB.*\d+ MiB", said):
        raise JourneyError(f"a start that the memory cannot hold is refused with both figures; said was:\n{said}")
