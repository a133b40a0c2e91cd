"""A machine that plays pods: each has a network namespace of its own, and its containers are processes.

As a node of Kubernetes does, it starts a container again whenever it ends, asks pods whether they are ready,
and keeps their names up to date. It must itself run in namespaces of its own (`scripts/chart-drill` sees to
that): with its end all ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.deploy.drill.images import Image
from tests.deploy.drill.pods import Container, Part, Pod, Volume

BRIDGE = "pods"
NETWORK = "198.18.0"
"""Of the range for tests of networks; it exists in the node's own namespace only."""
LOOK_PERIOD_S = 0.2
PROBE_TIMEOUT_S = 2.0
FIRST_RESTART_S = 0.0
RESTART_S = 10.0
"""Kubernetes starts a container again at once, then after 10 s, and doubles that."""
STOP_S = 30.0
HOSTS_BYTES = 16_384
"""The size of the file of names: constant, so that a reader never meets half of it."""
CONTAINER = Path(__file__).with_name("container.py")


class NodeError(Exception):
    """Something did not start or end as it should."""


@dataclass(slots=True)
class _Played:
    """A pod in play."""

    pod: Pod
    address: str
    folder: Path
    holder: subprocess.Popen[bytes]
    """Keeps the network namespace while containers come and go."""
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    restart_at_s: float | None = None
    is_ready: bool = False
    failures: int = 0
    probe_at_s: float = 0.0
    is_stopping: bool = False
    volumes: dict[str, Path] = field(default_factory=dict)


class Playing:
    """One pod as the drill sees it: like a server, under one name."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self.name = name

    @property
    def url(self) -> str:
        """Its address at present: a pod that replaces another has a new one."""
        return self._node.url(self.name)


class Node:
    """Plays pods."""

    def __init__(self, folder: Path, images: Mapping[Part, Image]) -> None:
        """Make the bridge; the namespace must have no other network."""
        self.folder = folder
        # An overlay's upper layer must not lie in its lower one.
        self._disks = folder / "disks"
        self._disks.mkdir()
        _run("mount", "-t", "tmpfs", "tmpfs", str(self._disks))
        self._images = images
        self._played: dict[str, _Played] = {}
        self._urls: dict[str, str] = {}
        self._numbers = iter(range(10, 250))
        self._lock = threading.RLock()
        self._is_over = False
        self._hosts = folder / "hosts"
        self._hosts.write_bytes(b"\n" * HOSTS_BYTES)
        self._can_change_user = _maps_all_users()
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        self._thread = threading.Thread(target=self._look_after, name="node", daemon=True)

    def __enter__(self) -> Node:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._thread.join(STOP_S)
        for name in list(self._played):
            self._remove(name)

    def play(self, pods: Sequence[Pod]) -> list[Playing]:
        """Start pods; they become ready by and by."""
        for pod in pods:
            self._start_pod(pod)
        return [self.playing(pod.name) for pod in pods]

    def playing(self, name: str) -> Playing:
        """Return a pod as the drill sees it."""
        return Playing(self, name)

    def url(self, name: str) -> str:
        """Return the address of a pod's probed port; while it is replaced, the one that it had."""
        return self._urls[name]

    def is_ready(self, name: str) -> bool:
        """Return whether a pod is ready; one that is just replaced is not."""
        played = self._played.get(name)
        return played is not None and played.is_ready

    def starts(self, name: str) -> int:
        """Return how often a pod's container was started."""
        return self._played[name].starts

    def await_ready(self, names: Sequence[str], timeout_s: float) -> None:
        """Return once all of these are ready.

        Raises:
            NodeError: they are not in time, or one has ended several times.
        """
        deadline = time.monotonic() + timeout_s
        while missing := [name for name in names if not self.is_ready(name)]:
            for name in missing:
                if self.starts(name) > 2:
                    raise NodeError(f"{name} ends again and again:\n{self.log(name)[-3000:]}")
            if time.monotonic() > deadline:
                raise NodeError(f"{missing} not ready in time:\n{self.log(missing[0])[-3000:]}")
            time.sleep(LOOK_PERIOD_S)

    def log(self, name: str) -> str:
        """Return what a pod's containers have printed."""
        return self._log_path(name).read_bytes().decode(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a container as `kill -9` of its first process does; the node starts it again."""
        with self._lock:
            played = self._played[name]
            played.is_ready = False
            self._write_hosts()
            os.kill(self._first_process(played), signal.SIGKILL)
            assert played.process is not None
            played.process.wait(STOP_S)

    def replace(self, pod: Pod) -> float:
        """End a pod as Kubernetes does, and play another of its name, at a new address.

        Returns:
            How long its end took (s).
        """
        took_s = self.delete(pod.name)
        self._start_pod(pod)
        return took_s

    def delete(self, name: str) -> float:
        """End a pod in its grace period; return how long that took (s).

        Raises:
            NodeError: it had to be killed.
        """
        with self._lock:
            played = self._played[name]
            # It leaves its Services first.
            played.is_stopping, played.is_ready = True, False
            self._write_hosts()
        begun_s = time.monotonic()
        process = played.process
        is_killed = False
        if process is not None and process.poll() is None:
            if played.pod.before_stop:
                self.execute(name, played.pod.before_stop)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first_process(played), signal.SIGTERM)
            try:
                process.wait(max(0.1, played.pod.grace_s - (time.monotonic() - begun_s)))
            except subprocess.TimeoutExpired:
                is_killed = True
        took_s = time.monotonic() - begun_s
        self._remove(name)
        if is_killed:
            raise NodeError(f"{name} did not end within its {played.pod.grace_s:g} s")
        return took_s

    def execute(self, name: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in a pod's container, with its variables, as `kubectl exec` does."""
        played = self._played[name]
        first = self._first_process(played)
        user = self._user(played.pod.main)
        words = ["nsenter", f"--target={first}", "--mount", "--net", "--pid", "--uts", "--root", "--wdns=/"]
        words += [] if user is None else [f"--setgid={user}", f"--setuid={user}"]
        return subprocess.run(
            # `env` finds the command by the container's own path.
            [*words, "/usr/bin/env", *command],
            env=self._environment(played.pod.main),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _start_pod(self, pod: Pod) -> None:
        number = next(self._numbers)
        folder = self._disks / f"{pod.name}-{number}"
        folder.mkdir()
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        address = f"{NETWORK}.{number}"
        _await_namespace(holder.pid)
        _connect(holder.pid, number, address)
        played = _Played(pod, address, folder, holder)
        for volume in pod.volumes:
            played.volumes[volume.name] = _make_volume(
                folder / "volumes" / volume.name.replace("/", "-"), volume
            )
        with self._lock:
            self._played[pod.name] = played
            self._urls[pod.name] = f"http://{address}:{pod.probe.port}"
            self._write_hosts()
        for container in pod.first:
            process = self._launch(played, container)
            if process.wait(STOP_S) != 0:
                raise NodeError(f"{pod.name}: {container.command} failed:\n{self.log(pod.name)[-2000:]}")
        with self._lock:
            self._start_main(played)

    def _start_main(self, played: _Played) -> None:
        played.starts += 1
        played.restart_at_s = None
        played.failures = 0
        played.process = self._launch(played, played.pod.main)

    def _launch(self, played: _Played, container: Container) -> subprocess.Popen[bytes]:
        image = self._images[container.image]
        work = played.folder / f"container-{time.monotonic_ns()}"
        work.mkdir()
        mounts = {
            mount.path: (str(played.volumes[mount.volume]), mount.is_read_only) for mount in container.mounts
        }
        mounts |= {path: (source, True) for path, source in image.folders.items()}
        spec = {
            "name": played.pod.name,
            "work": str(work),
            "hosts": str(self._hosts),
            # Where the interpreter lives below the home of root.
            "passable": ["/root"],
            "removed": list(image.removed),
            "homes": [image.home] if image.home != "/" else [],
            "mounts": mounts,
            "is_read_only": container.is_read_only,
            "folder": "/",
            "user": self._user(container),
            "command": list(container.command),
            "environment": self._environment(container),
        }
        path = work / "spec.json"
        path.write_text(json.dumps(spec))
        with self._log_path(played.pod.name).open("ab") as log:
            return subprocess.Popen(
                [
                    *("nsenter", f"--net=/proc/{played.holder.pid}/ns/net"),
                    *("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child=SIGKILL"),
                    *(sys.executable, "-I", "-S", str(CONTAINER), str(path)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _environment(self, container: Container) -> dict[str, str]:
        image = self._images[container.image]
        return {"PATH": image.path, "HOME": image.home, **image.environment, **container.environment}

    def _user(self, container: Container) -> int | None:
        """Return whom a container runs as, where the drill may change that."""
        return container.user if self._can_change_user else None

    def _first_process(self, played: _Played) -> int:
        assert played.process is not None
        pid = played.process.pid
        deadline = time.monotonic() + STOP_S
        while not (children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            if time.monotonic() > deadline or played.process.poll() is not None:
                raise ProcessLookupError(played.pod.name)
            time.sleep(0.01)
        return int(children[0])

    def _remove(self, name: str) -> None:
        with self._lock:
            played = self._played.pop(name)
            self._write_hosts()
        if played.process is not None and played.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(self._first_process(played), signal.SIGKILL)
            played.process.wait(STOP_S)
        played.holder.kill()
        played.holder.wait(STOP_S)

    def _log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _look_after(self) -> None:
        while not self._is_over:
            with self._lock:
                played = [each for each in self._played.values() if not each.is_stopping]
            for each in played:
                self._look_at(each)
            time.sleep(LOOK_PERIOD_S)

    def _look_at(self, played: _Played) -> None:
        now = time.monotonic()
        with self._lock:
            if played.process is None or played.is_stopping:
                return
            if played.process.poll() is not None:
                self._restart(played, now)
                return
            if now < played.probe_at_s:
                return
        played.probe_at_s = now + played.pod.probe.period_s
        is_well = _answers(played.address, played.pod.probe.port, played.pod.probe.path)
        with self._lock:
            if played.is_stopping or played.process.poll() is not None:
                return
            played.failures = 0 if is_well else played.failures + 1
            is_ready = is_well or (played.is_ready and played.failures < played.pod.probe.failures)
            if is_ready != played.is_ready:
                played.is_ready = is_ready
                self._write_hosts()

    def _restart(self, played: _Played, now: float) -> None:
        if played.is_ready:
            played.is_ready = False
            self._write_hosts()
        if played.restart_at_s is None:
            played.restart_at_s = now + (FIRST_RESTART_S if played.starts == 1 else RESTART_S)
        if now >= played.restart_at_s:
            self._start_main(played)

    def _write_hosts(self) -> None:
        lines = ["127.0.0.1 localhost"]
        for played in self._played.values():
            names = [*played.pod.names, *(played.pod.ready_names if played.is_ready else ())]
            if names and not played.is_stopping:
                lines.append(" ".join([played.address, *names]))
        text = "\n".join(lines).encode().ljust(HOSTS_BYTES, b"\n")
        with self._hosts.open("r+b", buffering=0) as file:
            file.write(text)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _await_namespace(pid: int) -> None:
    """Return once a process has a network of its own."""
    deadline = time.monotonic() + STOP_S
    mine = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == mine:
        if time.monotonic() > deadline:
            raise NodeError("no network namespace")
        time.sleep(0.005)


def _connect(pid: int, number: int, address: str) -> None:
    """Put a namespace on the bridge."""
    _run("ip", "link", "add", f"pod{number}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run("ip", "link", "set", f"pod{number}", "master", BRIDGE, "up")
    for command in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "address", "add", f"{address}/24", "dev", "eth0"),
        ("ip", "link", "set", "eth0", "up"),
    ):
        _run("nsenter", f"--net=/proc/{pid}/ns/net", *command)


def _make_volume(folder: Path, volume: Volume) -> Path:
    if volume.source is not None:
        return Path(volume.source)
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for name, content in volume.files.items():
        (folder / name).write_bytes(content)
    return folder


def _answers(host: str, port: int, path: str | None) -> bool:
    try:
        if path is None:
            socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S).close()
            return True
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=PROBE_TIMEOUT_S):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _maps_all_users() -> bool:
    """Return whether this process may become any user: not in a user namespace with one."""
    [line] = Path("/proc/self/uid_map").read_text().splitlines()[:1]
    return int(line.split()[2]) > 65_535
