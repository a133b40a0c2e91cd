"""The distributions, built and installed into environments of their own: what they hold, bring and can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from autellix_backend.install import pip_install

ROOT = Path(__file__).parents[1]
CLIENT_LIMIT_KIB = 300
CLIENT_PACKAGES = {"autellix", "autellix_wire", "autellix_langchain", "autellix_autogen"}
BACKEND_PACKAGES = {"autellix_backend", "autellix_lab"}
ENGINE_LIBRARIES = {"msgspec", "pydantic", "pyzmq"}
PYDANTIC_S_OWN = {"annotated-types", "pydantic-core", "typing-extensions", "typing-inspection"}
# The tests' environment must not show through.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AUTELLIX"))
}
UV = Path(sys.executable).with_name("uv")

pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv is not in this environment")


class Environment:
    """A virtual environment with one of the distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run(str(UV), "venv", "-q", "--python", sys.executable, str(folder))

    def install(self, *words: str) -> None:
        run(str(UV), "pip", "install", "-q", "--python", str(self.folder / "bin/python"), *words)

    def installed(self) -> set[str]:
        listed = run(
            str(UV), "pip", "list", "--format", "json", "--python", str(self.folder / "bin/python")
        ).stdout
        return {package["name"] for package in json.loads(listed)}

    def run(self, program: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run(str(self.folder / "bin" / program), *words, cwd=self.folder, code=code)


def run(*command: str, cwd: Path = ROOT, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=cwd, env={**ENVIRONMENT, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def packages(wheel: Path) -> set[str]:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wheels of the client and the backend, without native code, each built from its sdist."""
    folder = tmp_path_factory.mktemp("wheels")
    built = {}
    for name, source in (("client", ROOT), ("backend", ROOT / "backend")):
        run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder / name), cwd=source)
        [sdist] = (folder / name).glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / name, filter="data")
        build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist"))
        run(*build, cwd=folder / name / sdist.name.removesuffix(".tar.gz"), AUTELLIX_NATIVE="off")
    built["client"], built["backend"] = sorted((folder / "dist").glob("*.whl"))
    return built


@pytest.fixture
def environment(wheels: dict[str, Path], tmp_path: Path) -> Callable[[str], Environment]:
    """Return a function that installs one requirement, with other packages from the index."""

    def install(requirement: str) -> Environment:
        made = Environment(tmp_path / "environment")
        try:
            made.install("--find-links", str(wheels["client"].parent), requirement)
        except AssertionError as error:
            if "error sending request" in str(error) or "dns error" in str(error):
                pytest.skip("the package index cannot be reached")
            raise
        return made

    return install


def test_the_client_is_one_small_pure_package_alone(wheels: dict[str, Path], tmp_path: Path) -> None:
    wheel = wheels["client"]
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < CLIENT_LIMIT_KIB * 1024
    assert packages(wheel) == CLIENT_PACKAGES
    environment = Environment(tmp_path / "environment")
    environment.install("--no-index", str(wheel))
    assert environment.installed() == {"autellix"}
    environment.run(
        "python",
        *("-W", "error", "-c"),
        "import autellix, autellix.web, autellix.testing; assert autellix.status().is_on",
    )
    # The command line is the server's.
    refused = environment.run("python", "-m", "autellix", "serve", code=2)
    assert pip_install("gateway") in refused.stderr


def test_no_build_of_the_client_runs_a_compiler(tmp_path: Path) -> None:
    """An installation from a checkout, too: what looks for a compiler finds one that notes its call."""
    called = tmp_path / "called"
    for name in ("c++", "g++", "clang++", "cc", "gcc", "nvcc"):
        compiler = tmp_path / name
        compiler.write_text(f'#!/bin/sh\necho "$0" >>{called}\nexit 1\n')
        compiler.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"))
    run(*build, PATH=path)
    assert not called.exists()


def test_the_backend_s_wheel_holds_the_server_and_the_laboratory(wheels: dict[str, Path]) -> None:
    assert packages(wheels["backend"]) == BACKEND_PACKAGES
    with tarfile.open(next((wheels["client"].parent.parent / "backend").glob("*.tar.gz"))) as archive:
        assert any(name.endswith("/csrc/src/cpu_backend.cpp") for name in archive.getnames())


@pytest.mark.network
def test_the_engine_s_part_brings_only_what_vllm_has(environment: Callable[[str], Environment]) -> None:
    made = environment("autellix[engine]")
    assert made.installed() == {"autellix", "autellix-backend"} | ENGINE_LIBRARIES | PYDANTIC_S_OWN
    # All of the plugin that needs no vLLM.
    made.run(
        "python",
        *("-W", "error", "-c"),
        "import autellix_backend.core.machine, autellix_backend.settings, autellix_backend.reports.link, "
        "autellix_backend.kernels, autellix_backend.vllm_plugin.report_server",
    )
    assert "which is not installed; expected `pip install" in made.run("autellix", "serve", code=2).stderr


@pytest.mark.network
def test_the_gateway_starts_from_its_wheel(environment: Callable[[str], Environment]) -> None:
    made = environment("autellix[backend]")
    assert "openai" not in made.installed()
    assert "matplotlib" not in made.installed()
    made.run("autellix", "--help")
    made.run("python", "-m", "autellix", "--help")
    made.run("autellix", "config", "check")
    made.run(
        "python",
        "-c",
        "import autellix_backend.gateway.app, importlib.resources as r; "
        "assert r.files('autellix_backend.console.page').joinpath('static/index.html').is_file()",
    )
