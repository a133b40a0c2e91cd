"""The guide for several models: its proxy by path needs nothing else, sessions included."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, Page
from tests.ports import free_port
from tests.serving import serving_thread
from tests.waiting import PATIENCE_S

from autellix_backend.gateway.app import create_app
from autellix_backend.settings import Settings
from autellix_lab.fakes.engine import FakeEngine

GUIDE = ROOT / "docs" / "guides" / "models.md"
CLIENT = """
import autellix
from openai import OpenAI

with autellix.program("two"):
    for root in {roots}:
        client = OpenAI(base_url=root + "/v1", api_key="unused")
        client.chat.completions.create(
            model="autellix.fake-model", messages=[{{"role": "user", "content": "hello"}}]
        )
"""


@contextmanager
def nginx(locations: str, folder: Path) -> Iterator[str]:
    """Run nginx with these locations; yield its address."""
    port = free_port()
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {paths} server {{ listen 127.0.0.1:{port}; {locations} }} }}\n"
    )
    process = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_a_program_of_two_models_is_one_at_both_gateways(tmp_path: Path) -> None:
    locations = next(
        code for code in Page(GUIDE, GUIDE.read_text(encoding="utf-8")).fenced("text") if "proxy_pass" in code
    )
    first, second = FakeEngine(), FakeEngine()
    with (
        serving_thread(create_app(Settings(), first), first) as one,
        serving_thread(create_app(Settings(), second), second) as two,
        nginx(
            locations.replace("http://127.0.0.1:8001", one).replace("http://127.0.0.1:8002", two), tmp_path
        ) as proxy,
    ):
        roots = [f"{proxy}/qwen3-8b", f"{proxy}/qwen3-32b"]
        subprocess.run(
            [sys.executable, "-c", CLIENT.format(roots=roots)],
            env={**os.environ, "AUTELLIX_BASE_URL": ",".join(roots)},
            check=True,
            timeout=PATIENCE_S,
        )
        ended = []
        for gateway in (one, two):
            with urllib.request.urlopen(f"{gateway}/autellix/v1/history", timeout=PATIENCE_S) as answer:
                ended.append([program["name"] for program in json.load(answer)["programs"]])

    assert ended == [["two"], ["two"]]
