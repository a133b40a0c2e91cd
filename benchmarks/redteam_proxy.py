"""The proxies of `deploy/proxy` in front of a gateway, each with its configuration as it is shipped."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

SHIPPED = Path(__file__).parents[1] / "deploy" / "proxy"
PROXIES = ("nginx", "envoy")
START_S = 20.0


def nginx(gateways: Sequence[str], port: int, folder: Path) -> list[str]:
    """Write nginx's files with other addresses, and return its command line."""
    shutil.copy(SHIPPED / "nginx.conf", folder)
    (folder / "gateways.conf").write_text("".join(f"server {gateway};\n" for gateway in gateways))
    (folder / "listen.conf").write_text(f"listen 127.0.0.1:{port} backlog=4096;\n")
    return ["nginx", "-p", f"{folder}/", "-c", "nginx.conf", "-g", f"pid {folder}/pid; daemon off;"]


def envoy(gateways: Sequence[str], port: int, folder: Path) -> list[str]:
    """Write Envoy's file with other addresses and without TLS, and return its command line."""
    [gateway] = gateways
    host, _, gateway_port = gateway.partition(":")
    text = (SHIPPED / "envoy.yaml").read_text()
    for shipped, here in (
        ("{address: 0.0.0.0, port_value: 443}", f"{{address: 127.0.0.1, port_value: {port}}}"),
        ("{address: 127.0.0.1, port_value: 8080}", f"{{address: {host}, port_value: {gateway_port}}}"),
    ):
        assert shipped in text, shipped
        text = text.replace(shipped, here)
    begin, end = text.index("# TLS begins"), text.index("# TLS ends")
    (folder / "envoy.yaml").write_text(text[:begin] + text[end:])
    return ["envoy", "-c", str(folder / "envoy.yaml"), "--use-dynamic-base-id", "--log-level", "error"]


@contextmanager
def running_proxy(name: str | None, gateway_url: str, folder: Path, *further_urls: str) -> Iterator[str]:
    """Run a proxy in front of gateways and yield its address; the first gateway's own without a proxy."""
    if name is None:
        yield gateway_url
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    gateways = [urlsplit(url).netloc for url in (gateway_url, *further_urls)]
    command = {"nginx": nginx, "envoy": envoy}[name](gateways, port, folder)
    process = subprocess.Popen(command)
    try:
        _await_port(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args!r} did not start") from None
            time.sleep(0.05)
