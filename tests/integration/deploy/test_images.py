"""Images, built without an engine: the Dockerfile's steps in a clean root of Debian, then a container as compose.yaml says.

The proxy's takes a minute (`make test-all`). The nodes' take gigabytes: `-m image_of_node` asks for them.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.deploy.release.objections import version_of
from tests.support.compose import ROOT, compose_files, rendered, seconds
from tests.support.composed.network import Networks
from tests.support.composed.resolver import RESOLV_CONF, Resolver
from tests.support.images.build import Builder, BuildError, Image
from tests.support.images.container import Container
from tests.support.images.machine import MachineError, debian
from tests.support.pinned_venv import REQUIREMENTS

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(1800)]

STAND_IN = """\
FROM debian:bookworm-1-slim AS stand-in
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3-pip
COPY requirements/proxy.txt /stand-in/
RUN python3 -m pip install --break-system-packages --no-deps -r /stand-in/proxy.txt
"""
USER = 10001
STEP_S = 1500.0
VERSION = version_of((ROOT / "pyproject.toml").read_text())
CHAT = {"model": "baton-embedded", "messages": [{"role": "user", "content": "Who is Clara Voss?"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """Of the images for machines without an accelerator; what it has built is removed, pytest would keep gigabytes."""
    try:
        debian()
    except MachineError as exc:
        pytest.skip(str(exc))
    folder = tmp_path_factory.mktemp("build")
    yield Builder(ROOT / "deploy" / "docker" / "Dockerfile", ROOT, folder, step_s=STEP_S)
    shutil.rmtree(folder)


@pytest.fixture
def workshop(tmp_path: Path, builder: Builder) -> Iterator[Path]:
    """A folder that is removed with all that was built there."""
    folder = tmp_path / "workshop"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def proxy_image(builder: Builder) -> Image:
    """The proxy's, built once."""
    return builder.build("proxy")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Of compose.yaml."""
    found: dict[str, Any] = rendered(compose_files())["services"]
    return found


@pytest.fixture
def volumes(tmp_path: Path, proxy_image: Image, services: dict[str, Any]) -> Path:
    """Named volumes, the secrets made by the service that makes them."""
    with Container(proxy_image, services["secret"], tmp_path / "secret", volumes=tmp_path / "volumes") as secret:
        assert secret.wait(60) == 0, secret.tail()
    return tmp_path / "volumes"


@pytest.fixture
def networks() -> Iterator[Networks]:
    """Those of compose.yaml."""
    with Networks(["front", "nodes"], clients="front") as made:
        yield made


def installed(container: Container, python: str = "python") -> dict[str, str]:
    """Distribution → version, as the image's Python sees them."""
    script = (
        "import json; from importlib.metadata import distributions;"
        "print(json.dumps({d.name.lower().replace('_', '-').replace('.', '-'): d.version for d in distributions()}))"
    )
    found: dict[str, str] = json.loads(container.exec(python, "-c", script).stdout)
    return found


def pinned(*files: str) -> dict[str, str]:
    """Name → version of files of pins, without those of other machines."""
    lines = [line for file in files for line in (REQUIREMENTS / file).read_text().splitlines() if "==" in line]
    pairs = (line.partition(";")[0].strip().partition("==") for line in lines if not line.startswith("#"))
    return {name.lower(): version for name, _, version in pairs}


def test_the_secrets_are_the_users_alone(volumes: Path) -> None:
    """What the first container has written belongs to the user of the images, and nobody else reads it."""
    folder = volumes / "secrets"

    assert {file.name for file in folder.iterdir()} == {"cluster", "admin"}
    for file in (folder, *folder.iterdir()):
        assert (file.stat().st_uid, file.stat().st_mode & 0o077) == (USER, 0)


def test_the_proxys_image_serves(
    proxy_image: Image, services: dict[str, Any], volumes: Path, networks: Networks, tmp_path: Path
) -> None:
    """Confined as in compose.yaml it says that it is alive, and not ready without nodes; SIGTERM ends it with 0."""
    seat = networks.add("proxy", ["front", "nodes"])
    service = services["proxy"]
    _, *ready_check = service["healthcheck"]["test"]
    with Container(proxy_image, service, tmp_path / "proxy", volumes=volumes, network=seat.space) as proxy:
        proxy.wait_healthy(proxy_image.health, 60)
        refused = proxy.exec(*ready_check)
        status = Path(f"/proc/{proxy.first}/status").read_text()
        written = proxy.exec("touch", "/opt/baton/file")
        ended = proxy.stop(seconds(service["stop_grace_period"]))

    assert (refused.returncode, "/ready answers 503" in refused.stderr) == (1, True)
    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Read-only file system" in written.stderr
    assert ended == 0, proxy.tail()


def test_the_proxys_image_holds_its_pins_and_nothing_else(
    proxy_image: Image, services: dict[str, Any], volumes: Path, tmp_path: Path
) -> None:
    """No torch, no vLLM, no pip; every module of the proxy can be imported, that of traces too."""
    idle = replace(proxy_image, entrypoint=["sleep"])
    service = services["proxy"] | {"command": ["600"]}
    with Container(idle, service, tmp_path / "idle", volumes=volumes) as container:
        found = installed(container)
        modules = container.exec(
            "python", "-c", "import baton.proxy.__main__, baton.proxy.tracing.exporter, baton.deploy.cli"
        )
        version = container.exec("baton", "--version")

    assert found == pinned("proxy.txt") | {"baton-serve": VERSION}
    assert (modules.returncode, modules.stderr) == (0, "")
    assert version.stdout == f"baton {VERSION}\n"


@pytest.mark.image_of_node
@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_the_steps_for_accelerators_run_on_a_stand_in(device: str, workshop: Path) -> None:
    """Their bases cannot be had here. On a Debian with pip and what Baton needs of vLLM's image, every step does its part."""
    (workshop / "Dockerfile").write_text(STAND_IN)
    base = Builder(workshop / "Dockerfile", ROOT, workshop / "base", step_s=STEP_S).build("stand-in")
    file = ROOT / "deploy" / "docker" / f"{device}.Dockerfile"
    bases = {"vllm/vllm-openai": base, "quay.io/ascend/vllm-ascend": base}
    image = Builder(file, ROOT, workshop / device, step_s=STEP_S, bases=bases).build("")

    idle = replace(image, entrypoint=["sleep"])
    service: dict[str, Any] = {"command": ["600"], "volumes": [], "read_only": True, "cap_drop": ["ALL"]}
    with Container(idle, service, workshop / "idle", volumes=workshop) as container:
        found = installed(container, "python3")
        version = container.exec("baton", "--version")
        model = container.exec("ls", "/opt/embedded-model/config.json")
        unwell = container.exec(*image.health)

    assert {name: found.get(name) for name in pinned(f"{device}.txt")} == pinned(f"{device}.txt")
    assert (version.stdout, model.returncode, unwell.returncode) == (f"baton {VERSION}\n", 0, 1)


@pytest.mark.image_of_node
def test_the_build_for_accelerators_fails_where_baton_lacks_something(workshop: Path) -> None:
    """A base without Baton's packages is found out when the image is built, not when it runs."""
    (workshop / "Dockerfile").write_text(STAND_IN.partition("COPY")[0])
    base = Builder(workshop / "Dockerfile", ROOT, workshop / "base", step_s=STEP_S).build("stand-in")
    file = ROOT / "deploy" / "docker" / "cuda.Dockerfile"

    with pytest.raises(BuildError, match=r"baton-serve .* requires"):
        Builder(file, ROOT, workshop / "cuda", step_s=STEP_S, bases={"vllm/vllm-openai": base}).build("")


@pytest.mark.image_of_node
def test_the_nodes_image_serves(
    builder: Builder, services: dict[str, Any], volumes: Path, networks: Networks, tmp_path: Path
) -> None:
    """compose.yaml's three services, each in its image: an answer that both nodes had a part in; all end with 0."""
    proxy_image, node_image = builder.build("proxy"), builder.build("node")
    print("\n".join(f"{took_s:7.1f} s  {step}" for step, took_s in builder.steps))
    names: dict[str, list[str]] = {}
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(RESOLV_CONF)
    files = {"/etc/resolv.conf": resolv}
    seats = {name: networks.add(name, list(services[name]["networks"])) for name in ("prefill", "decode", "proxy")}
    for name in ("prefill", "decode"):
        names[name] = [seats[name].addresses["nodes"]]

    def container(name: str, image: Image) -> Container:
        return Container(
            image, services[name], tmp_path / name, volumes=volumes, network=seats[name].space, files=files
        )

    with (
        Resolver(seats["proxy"].space, names),
        container("prefill", node_image) as prefill,
        container("decode", node_image) as decode,
        container("proxy", proxy_image) as proxy,
    ):
        for name, each in (("prefill", prefill), ("decode", decode), ("proxy", proxy)):
            each.wait_healthy(services[name]["healthcheck"]["test"][1:], 300)
        found = installed(decode)
        url = f"http://{seats['proxy'].addresses['front']}:8000/v1/chat/completions"
        asked = ["curl", "-sS", "-D-", url, "-H", "Content-Type: application/json", "-d", json.dumps(CHAT)]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True).stdout
        ended = {name: each.stop(60) for name, each in (("proxy", proxy), ("prefill", prefill), ("decode", decode))}

    print(answer)
    assert "x-baton-path: disaggregated" in answer.lower()
    assert '"finish_reason"' in answer
    assert ended == {"proxy": 0, "prefill": 0, "decode": 0}, prefill.tail() + decode.tail()
    wanted = pinned("proxy.txt", "cpu.txt", "cpu-transitive.txt") | {"baton-serve": VERSION}
    assert {name: found.get(name) for name in wanted} == wanted
