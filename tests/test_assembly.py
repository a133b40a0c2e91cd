"""The console is above the gateway: without it the gateway serves calls, its metrics and its engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import listen, serve, tenants_file

from autellix_backend.assembly import create_app
from autellix_backend.cli.main import make_parser
from autellix_backend.cli.options import settings_from_args
from autellix_backend.console.http.page import has_page
from autellix_backend.settings import GatewaySettings, Settings

__all__ = ["listen", "serve", "tenants_file"]

API = "/autellix/v1"
CONSOLE_PATHS = {
    "/",
    "/autellix",
    "/autellix/",
    "/autellix/page/{name}",
    f"{API}/calls/{{call_id}}/why",
    f"{API}/events",
    f"{API}/history",
    f"{API}/history/{{program_id}}",
    f"{API}/overview",
    f"{API}/programs",
    f"{API}/programs/{{program_id}}/timeline",
    f"{API}/programs/{{program_id}}/why",
    f"{API}/replay",
}
NAMED = {"x-autellix-program-id": "p", "x-autellix-program-name": "react"}


def paths_of(settings: Settings) -> dict[str, Any]:
    document: dict[str, Any] = create_app(settings).openapi()
    return dict(document["paths"])


def test_without_the_console_its_paths_alone_are_gone() -> None:
    """`DELETE /programs/{program_id}` is the sessions API's, and stays."""
    every = paths_of(Settings())
    left = paths_of(Settings(gateway=GatewaySettings(console=False)))

    assert every.keys() - left.keys() == CONSOLE_PATHS
    one = f"{API}/programs/{{program_id}}"
    assert (every[one].keys(), left[one].keys()) == ({"get", "delete"}, {"delete"})
    assert all(left[path] == every[path] for path in left.keys() - {one})


async def test_a_gateway_without_a_console_serves_calls_metrics_and_engines(serve: Any) -> None:
    async with serve(console=False) as rig:
        assert rig.app.state.console is None
        session = {"session_id": "s"}
        async with rig.client.post(f"{rig.url}{API}/sessions", json=session) as response:
            assert response.status == 201
        await rig.chat(NAMED)
        await rig.chat({**NAMED, "x-autellix-final": "true"})
        await rig.settled()
        assert (await rig.get("/readyz"))[1]["status"] == "ready"
        [engine] = (await rig.get(f"{API}/engines"))[1]["engines"]
        assert engine["state"] == "up"
        async with rig.client.get(rig.url + "/metrics") as response:
            metrics = await response.text()
        # The record of a program's calls, which its metrics need, is there; what has ended is not kept.
        assert 'autellix_program_duration_seconds_count{name="other"} 1.0' in metrics
        for path in ("/programs", "/history", "/overview"):
            status, answer = await rig.get(API + path)
            assert (status, answer["error"]["code"]) == (404, "not_found")


async def test_no_path_of_a_page_is_open_without_a_console(serve: Any, tenants_file: Path) -> None:
    async with serve(console=False, tenants_file=tenants_file) as rig:
        for path in ("/", "/autellix/", "/autellix/page/main.js"):
            assert (await rig.get(path))[0] == 401


@pytest.mark.parametrize("page", ["auto", "on", "off"])
def test_the_option_turns_the_console_off_and_the_page_with_it(page: str) -> None:
    args = make_parser(["serve"]).parse_args(["serve", "--no-console"])
    gateway = settings_from_args(args).gateway

    assert not gateway.console
    assert not has_page(GatewaySettings(page=page, console=False), has_keys=True, is_loopback=True)
    assert settings_from_args(make_parser(["serve"]).parse_args(["serve"])).gateway.console
