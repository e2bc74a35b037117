"""Flags of vLLM's server that pass through a node: which are ours, and what do the others say?

vLLM's own parser is far too heavy to ask before the start-up checks, so this module knows just its spelling rules:
`--a_b` is `--a-b`, `--json.key value` sets part of `--json`, `--flag=value` equals `--flag value`, and any
unambiguous prefix of a flag stands for the flag.
"""

from collections.abc import Mapping, Sequence

from baton.node.errors import StartRefusedError

_BESIDE = "offloading is a KV connector of its own: name it in `beside` in the node's configuration instead"
_SETTING = "set it in the node's configuration instead"
OWNED: Mapping[str, str] = {
    "--model": f"it was given twice; {_SETTING}",
    "--host": f"it was given twice; {_SETTING}",
    "--port": f"it was given twice; {_SETTING}",
    "--uds": "a node is reached by host and port",
    "--grpc": "a node serves HTTP",
    "--config": "vLLM's flags belong into `vllm_args` of baton.yaml or onto the command line",
    "--kv-transfer-config": "the node sets the connector itself; its settings are in section `transfer`",
    "--kv-offloading-size": _BESIDE,
    "--kv-offloading-backend": _BESIDE,
    "--worker-cls": "the node brings a worker class of its own",
    "--enable-dbo": "dual-batch overlap runs the layers' hooks out of order, and KV could leave before it is written",
    "--enable-dual-batch-overlap": "dual-batch overlap runs the layers' hooks out of order, "
    "and KV could leave before it is written",
    **dict.fromkeys(
        (
            *("--data-parallel-rank", "-dpn"),
            *("--data-parallel-start-rank", "-dpr"),
            *("--data-parallel-size-local", "-dpl"),
            *("--data-parallel-external-lb", "-dpe"),
            *("--data-parallel-hybrid-lb", "-dph"),
            *("--data-parallel-address", "-dpa"),
            *("--data-parallel-backend", "-dpb"),
        ),
        "a node has all of its data-parallel engines on its own host, behind one port; run a node per host",
    ),
    **dict.fromkeys(
        ("--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp"),
        "ranks that divide a prompt's tokens cannot hand its KV off yet",
    ),
    "--disable-log-stats": "the proxy routes by the statistics",
}


_WHOLE = ("--data-parallel-size",)  # flags in their own right, though another one begins with them
RANK_FLAGS = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--data-parallel-size", "-dp"),
)


def refuse_owned(arguments: Sequence[str]) -> None:
    """Refuse arguments that contradict what the node sets itself, or do not begin with a flag."""
    if arguments and not arguments[0].startswith("-"):
        raise StartRefusedError(f"{arguments[0]!r} is neither a flag nor the value of one")
    for argument in arguments:
        for flag, reason in OWNED.items():
            if means(argument, flag):
                raise StartRefusedError(f"the flag {argument.split('=')[0]} cannot be passed on to vLLM: {reason}")


def given(arguments: Sequence[str], *names: str) -> bool:
    """Tell whether any of the flags is there, as `--name` or `--no-name`."""
    wanted = {*names, *(f"--no-{name[2:]}" for name in names if name.startswith("--"))}
    return any(canonical(argument) in wanted for argument in arguments)


def value_of(arguments: Sequence[str], *names: str) -> str | None:
    """Return the value of the last of the flags that is there, or None."""
    found = None
    for position, argument in enumerate(arguments):
        if canonical(argument) not in names:
            continue
        if "=" in argument:
            found = argument.split("=", 1)[1]
        elif position + 1 < len(arguments):
            found = arguments[position + 1]
    return found


def count_of(arguments: Sequence[str], *names: str) -> int:
    """Return a flag's whole number, 1 if it is absent; refuse one below 1, or that is none."""
    text = value_of(arguments, *names)
    if text is None:
        return 1
    if not text.isdecimal() or int(text) < 1:
        raise StartRefusedError(f"{names[0]} must be a whole number of at least 1, not {text!r}")
    return int(text)


def ranks_of(arguments: Sequence[str]) -> tuple[int, int]:
    """Return how many ranks an engine has, and how many data-parallel engines there are."""
    tp, pp, engines = (count_of(arguments, *names) for names in RANK_FLAGS)
    return tp * pp, engines


def means(argument: str, flag: str) -> bool:
    """Tell whether vLLM's parser may take the argument for the flag."""
    name = canonical(argument)
    if not name.startswith("--"):
        return name == flag
    return name not in ("--", *_WHOLE) and flag.startswith(name)


def canonical(argument: str) -> str:
    """Return the flag of an argument in the spelling with hyphens, without what is glued on."""
    name = argument.partition("=")[0].partition(".")[0]
    if name.startswith("--"):
        return "--" + name[2:].replace("_", "-")
    return "-O" if name.startswith("-O") else name  # the level may be glued on, as in "-O3"
