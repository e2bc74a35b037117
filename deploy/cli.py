"""The `baton` command: which part of Baton to run."""

import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version

from baton.loadtest import words

COMMANDS = {  # name → (module with `main(argv) -> int`, what it does)
    "serve": ("baton.deploy.serve", "run prefill nodes, decode nodes and the proxy on this machine"),
    "proxy": ("baton.proxy.__main__", "run the proxy alone"),
    "prefill": ("baton.prefill_node.__main__", "run one prefill node; further flags go to vLLM"),
    "decode": ("baton.decode_node.__main__", "run one decode node; further flags go to vLLM"),
    "loadtest": ("baton.loadtest.__main__", "measure a server, compare two runs, check accuracy"),
    "admin": ("baton.deploy.admin_command", "see and change the nodes of a running proxy"),
    "roles": ("baton.deploy.roles.command", "have nodes of running proxies change their roles by load"),
    "health": ("baton.deploy.health_command", "ask the proxy or node in this container whether it is well"),
    "secret": ("baton.deploy.secret_command", "make files with a fresh secret each"),
    "key": ("baton.deploy.key_command", "make an API key, or check a file of them"),
    "doctor": ("baton.deploy.doctor.command", "find what is wrong with a machine or a deployment"),
    "config": ("baton.deploy.config_command", "check the configuration, or print its reference"),
}
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    command, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if command == "--version":
        print(f"baton {version('baton-serve')}")
        return 0
    return words.run_command("baton", COMMANDS, command, rest, broken_pipe=EXIT_BROKEN_PIPE)


if __name__ == "__main__":
    sys.exit(main())
