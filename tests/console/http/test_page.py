"""The page's files: where they are served, to whom, and what a browser may do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from autellix_backend.console.http.page import PAGE_PATH, has_page
from autellix_backend.console.page.assets import INDEX, assets
from autellix_backend.gateway.http.guard import RequestGuard
from autellix_backend.gateway.tenancy.tenants import key_line
from autellix_backend.settings import GatewaySettings

FILES = sorted(set(assets()) - {INDEX})


async def test_the_page_and_its_files_are_served(serve: Any) -> None:
    async with serve() as rig:
        async with rig.client.get(rig.url + PAGE_PATH) as response:
            text = await response.text()
            assert (response.status, response.content_type) == (200, "text/html")
        assert 'src="page/main.js"' in text
        for name in FILES:
            async with rig.client.get(f"{rig.url}{PAGE_PATH}page/{name}") as response:
                assert response.status == 200
                assert response.headers["x-content-type-options"] == "nosniff"
                assert await response.read() == assets()[name].content


@pytest.mark.parametrize("name", ["none.js", INDEX, "..%2Fassets.py", "%2e%2e/assets.py"])
async def test_other_files_are_not(serve: Any, name: str) -> None:
    async with serve() as rig, rig.client.get(f"{rig.url}{PAGE_PATH}page/{name}") as response:
        assert response.status in (400, 404)
        assert "error" in await response.json()


@pytest.mark.parametrize("path", ["/", "/autellix"])
async def test_a_browser_is_led_to_the_page(serve: Any, path: str) -> None:
    async with serve() as rig, rig.client.get(rig.url + path) as response:
        assert str(response.url) == rig.url + PAGE_PATH


async def test_the_page_may_load_only_its_own_and_be_in_no_frame(serve: Any) -> None:
    async with serve() as rig, rig.client.get(rig.url + PAGE_PATH) as response:
        policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert response.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("page", "has_keys", "is_loopback", "expected"),
    [
        ("auto", False, True, True),
        ("auto", True, False, True),
        ("auto", False, False, False),
        ("on", False, False, True),
        ("off", True, True, False),
    ],
)
def test_a_network_without_keys_has_no_page_by_default(
    page: str, has_keys: bool, is_loopback: bool, expected: bool
) -> None:
    assert has_page(GatewaySettings(page=page), has_keys=has_keys, is_loopback=is_loopback) is expected


async def test_a_gateway_may_have_no_page(serve: Any) -> None:
    async with serve(page="off") as rig:
        for path in ("/", PAGE_PATH, PAGE_PATH + "page/main.js"):
            assert (await rig.get(path))[0] == 404


async def test_the_files_need_no_key_and_the_data_do(serve: Any, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(f'[[tenant]]\nname = "one"\nkeys = ["{key_line("one")}"]\n')
    async with serve(tenants_file=tenants) as rig:
        for path, expected in (
            (PAGE_PATH, 200),
            (PAGE_PATH + "page/main.js", 200),
            (PAGE_PATH + "v1/programs", 401),
            (PAGE_PATH + "v1/events", 401),
            (PAGE_PATH + "v1/programs/x/timeline", 401),
            ("/autellix/pages", 401),
        ):
            async with rig.client.get(rig.url + path) as response:
                assert (path, response.status) == (path, expected)


PAGE = "/autellix/"
GUARD = RequestGuard(Starlette(), is_local=True, hosts=(), origins=(), is_page_path=lambda path: path == PAGE)


def link(**others: str) -> dict[str, str]:
    marks = {"host": "localhost:8000", "sec-fetch-site": "cross-site"}
    how = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", **others}
    return {name.replace("_", "-"): value for name, value in {**marks, **how}.items()}


def test_a_link_of_another_site_leads_to_the_page_and_nowhere_else() -> None:
    assert GUARD.foreign_page(link(), PAGE) is None
    assert GUARD.foreign_page(link()) is not None
    assert GUARD.foreign_page(link(host="evil.example"), PAGE) is not None


@pytest.mark.parametrize(
    "other", [{"sec-fetch-dest": "iframe"}, {"sec-fetch-mode": "no-cors"}, {"origin": "null"}]
)
def test_another_site_neither_frames_the_page_nor_loads_its_files(other: dict[str, str]) -> None:
    assert GUARD.foreign_page(link(**other), PAGE) is not None
