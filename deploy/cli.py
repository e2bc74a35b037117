"""The `baton` command: which part of Baton to run."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version

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
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    command, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if command in COMMANDS:
        return _run(command, rest)
    if command == "--version":
        print(f"baton {version('baton-serve')}")
        return 0
    asked = command in ("-h", "--help", "help")
    print(usage(command if not asked else ""), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else EXIT_USAGE


def _run(command: str, rest: Sequence[str]) -> int:
    try:
        status: int = importlib.import_module(COMMANDS[command][0]).main(rest)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return EXIT_BROKEN_PIPE
    return status


def usage(wrong: str = "") -> str:
    lines = [f"baton: there is no command {wrong!r}\n"] if wrong else []
    lines.append("usage: baton COMMAND …   (`baton COMMAND --help` tells more)\n")
    lines += [f"  {name:<8} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
