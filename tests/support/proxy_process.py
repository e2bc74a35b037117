"""`python -m baton.proxy` as a process."""

import asyncio
import os
import sys

import httpx


async def spawn(*arguments: str) -> asyncio.subprocess.Process:
    """Run `python -m baton.proxy`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    environment["BATON_SERVE_STOP_TIMEOUT_S"] = "4"  # of which streams may take 2 s to end
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.proxy", *arguments, stderr=asyncio.subprocess.PIPE, env=environment
    )


async def is_ready(port: int) -> bool:
    """Return whether every node of the proxy is in use."""
    try:
        async with httpx.AsyncClient() as http:
            nodes = (await http.get(f"http://127.0.0.1:{port}/ready")).json()["nodes"]
    except httpx.HTTPError:
        return False
    return all(node["state"] == "ready" for node in nodes)
