"""Refusals before the heavy start: what would fail half a minute later, said now and in one sentence."""

import errno
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from baton.contracts.secret import SecretError, read_secret
from baton.node.errors import StartRefusedError
from baton.node.startup.flags import value_of

_SOCKET_PATH_MAX = 107  # sun_path of Linux, without the final NUL
_LONGEST_SOCKET_NAME = "/dp999/scheduler.sock"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_MISSING_LIBRARY = re.compile(r"(lib[\w+.-]+\.so[.\d]*): cannot open shared object file")
_APT_PACKAGES = "libibverbs1 ibverbs-providers libnuma1 libcurl4"
_IMPORT = "import mooncake.engine"
_IMPORT_TIMEOUT_S = 60
_PORT_LOOKS_EVERY_S = 0.1
_SPECULATIVE = ("--speculative-config", "-sc")
# Libraries that no package of Debian brings → what to do.
_DEVICE_LIBRARIES = {
    "libcudart": "its wheel must fit the CUDA that torch is built for: mooncake-transfer-engine-cuda13 for CUDA 13, "
    "mooncake-transfer-engine for CUDA 12",
    "libcuda.": "it comes with NVIDIA's driver; a container gets it from NVIDIA's container toolkit",
    **dict.fromkeys(
        ("libascendcl", "libllm_datadist", "libmetadef", "libhccl"),
        "it comes with CANN: source its set_env.sh before the node starts",
    ),
}


def check_secret(secret_file: Path | None) -> Path:
    """Return the path of a readable cluster secret."""
    if secret_file is None:
        raise StartRefusedError(
            "the cluster secret is not set: name its file in `cluster.secret_file`, the same on all nodes"
        )
    try:
        read_secret(secret_file)
    except SecretError as exc:
        raise StartRefusedError(str(exc)) from exc
    return secret_file.resolve()


def check_model(model: str) -> None:
    """Refuse a model that is neither there nor a hub id."""
    if not model:
        raise StartRefusedError("no model is given: name a folder or a hub id in `model`")
    path = Path(model)
    if path.is_dir() and not (path / "config.json").exists():
        raise StartRefusedError(f"the folder {model} holds no model: it has no config.json")
    if not path.exists() and (model[0] in "/.~" or not _HUB_ID.fullmatch(model)):
        raise StartRefusedError(f"the model {model} does not exist")


def check_port(host: str, port: int, purpose: str, patience_s: float = 0.0) -> None:
    """Refuse a port that may not be bound, or that is still taken after `patience_s`."""
    if not 0 < port < 65536:
        raise StartRefusedError(f"the {purpose} port {port} is not between 1 and 65535")
    deadline = time.monotonic() + patience_s
    while (problem := _binding_problem(host, port)) is not None:
        if problem.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
            how = "is not free" if problem.errno == errno.EADDRINUSE else "cannot be bound"
            where = host or "any address"
            raise StartRefusedError(f"the {purpose} port {port} on {where} {how}: {problem.strerror}") from problem
        time.sleep(_PORT_LOOKS_EVERY_S)


def _binding_problem(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        try:
            probe.bind((host, port))
        except OSError as exc:
            return exc
    return None


def check_runtime_dir(runtime_dir: Path) -> None:
    """Refuse a runtime folder that is not there or too deep for a socket's name."""
    if not runtime_dir.is_dir():
        raise StartRefusedError(f"the runtime folder {runtime_dir} does not exist")
    if len(str(runtime_dir)) + len(_LONGEST_SOCKET_NAME) > _SOCKET_PATH_MAX:
        raise StartRefusedError(f"the path of the runtime folder {runtime_dir} is too long to hold a socket")


def check_transfer_engine() -> None:
    """Refuse to start without Mooncake or a library that it needs.

    Asked in a process of its own: Mooncake brings a Go runtime, after which this process could not fork safely.
    """
    problem = _import_problem(_IMPORT)
    if problem and "libcudart" in problem:  # pip's is not found until torch has loaded it, as it has in a worker
        problem = _import_problem(f"import torch; {_IMPORT}")
    if problem is not None:
        raise StartRefusedError(explain_import_failure(problem))


def _import_problem(statement: str) -> str | None:
    """Return what a fresh Python says when an import fails."""
    command = [sys.executable, "-c", statement]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"`{statement}` does not come back within {_IMPORT_TIMEOUT_S} s"
    return probe.stderr if probe.returncode != 0 else None


def explain_import_failure(error_output: str) -> str:
    """Turn the traceback of `import mooncake.engine` into a sentence that says what to do."""
    if found := _MISSING_LIBRARY.search(error_output):
        for library, advice in _DEVICE_LIBRARIES.items():
            if found[1].startswith(library):
                return f"Mooncake needs {found[1]}, which is missing: {advice}"
        return f"Mooncake needs {found[1]}, which is missing: run `apt-get install -y {_APT_PACKAGES}`"
    if "No module named 'mooncake'" in error_output:
        return "Mooncake is not installed: install one of Baton's extras `cpu`, `cuda` or `npu`"
    last = error_output.strip().splitlines()[-1:] or ["no reason given"]
    return f"Mooncake cannot be imported: {last[0]}"


def check_speculation(arguments: Sequence[str], device: str) -> None:
    """Refuse a method of speculative decoding for which this machine lacks something; vLLM would say it in a traceback.

    What the hand-off does not cover is the connector's to say (`kv_connector/vllm_compat/speculative.py`).
    """
    method = speculative_method(arguments)
    if method == "suffix" and find_spec("arctic_inference") is None:
        raise StartRefusedError(
            "speculative decoding with method 'suffix' needs the package arctic-inference: install it, or use 'ngram'"
        )
    if method == "ngram_gpu" and device == "cpu":
        raise StartRefusedError("speculative decoding with method 'ngram_gpu' needs an accelerator: use 'ngram'")


def speculative_method(arguments: Sequence[str]) -> str:
    """Return the method that vLLM's flags name; "" if there is none, or one that vLLM will find out itself."""
    if method := value_of(arguments, "--spec-method"):
        return method
    text = value_of(arguments, *_SPECULATIVE)
    if text is None:
        return ""
    if any(argument.replace("_", "-").startswith(f"{_SPECULATIVE[0]}.method") for argument in arguments):
        return _dotted_method(arguments)
    try:
        settings = json.loads(text)
    except ValueError:
        return ""  # vLLM will say it
    method = settings.get("method") if isinstance(settings, dict) else None
    return method if isinstance(method, str) else ""


def _dotted_method(arguments: Sequence[str]) -> str:
    """`--speculative-config.method suffix`, or with `=`."""
    name = f"{_SPECULATIVE[0]}.method"
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, has_value, value = argument.partition("=")
        if flag.replace("_", "-") == name:
            return value if has_value else following
    return ""
