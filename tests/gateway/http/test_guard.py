"""Pages of other sites, and names that are made to resolve to the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from autellix_backend.engines import remote
from autellix_backend.gateway.http.guard import RequestGuard, is_loopback

BROWSER = {
    "origin": "https://chat.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def foreign_page(sent: dict[str, str], *, is_local: bool, **allowed: tuple[str, ...]) -> str | None:
    hosts, origins = allowed.get("hosts", ()), allowed.get("origins", ())
    return RequestGuard(Starlette(), is_local=is_local, hosts=hosts, origins=origins).foreign_page(sent)


def marks(**values: str) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in values.items()}


@pytest.mark.parametrize(
    "sent",
    [
        marks(),
        marks(host="127.0.0.1:8000"),
        marks(host="localhost:8000"),
        marks(host="[::1]:8000"),
        marks(host="app.localhost"),
        marks(host="localhost:8000", origin="http://localhost:8000"),
        marks(host="LOCALHOST", origin="http://localhost:80", sec_fetch_site="same-origin"),
        marks(host="localhost", sec_fetch_site="none"),
    ],
)
def test_clients_and_the_gateways_own_pages_pass(sent: dict[str, str]) -> None:
    assert foreign_page(sent, is_local=True) is None


@pytest.mark.parametrize(
    ("sent", "header"),
    [
        (marks(host="localhost:8000", origin="https://evil.example"), "Origin"),
        (marks(host="localhost:8000", origin="http://localhost:9000"), "Origin"),
        (marks(host="localhost:8000", origin="null"), "Origin"),
        (marks(host="localhost:8000", sec_fetch_site="cross-site"), "Sec-Fetch-Site"),
        (marks(host="evil.example:8000", origin="http://evil.example:8000"), "Host"),
        (marks(host="localhost.evil.example"), "Host"),
        (marks(host="192.168.0.7"), "Host"),
        (marks(host="[::1"), "Host"),
    ],
)
def test_pages_of_other_sites_are_found(sent: dict[str, str], header: str) -> None:
    assert (foreign_page(sent, is_local=True) or "").startswith(header)


def test_a_gateway_in_a_cluster_has_any_name() -> None:
    sent = marks(host="autellix.models.svc:8000", origin="http://autellix.models.svc:8000")
    assert foreign_page(sent, is_local=False) is None
    assert foreign_page(marks(host="autellix", origin="http://evil"), is_local=False) is not None


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.3.2.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False), ("evil", False)],
)
def test_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"host": "evil.example"}])
async def test_a_foreign_page_reaches_nothing(serve: Any, headers: dict[str, str]) -> None:
    async with serve() as rig:
        for path in ("/autellix/v1/engines", "/v1/chat/completions"):
            text = {"content-type": "text/plain", **headers}
            async with rig.client.post(rig.url + path, data=b'{"url": "http://x"}', headers=text) as response:
                assert response.status == 403
                assert (await response.json())["error"]["code"] == "foreign_page"
        assert rig.engine.requests == []


@pytest.mark.parametrize("is_local", [True, False])
def test_listed_names_and_origins_pass(is_local: bool) -> None:
    lists = {"hosts": ("host.docker.internal",), "origins": ("https://chat.example",)}
    for sent, passes in (
        (marks(host="host.docker.internal:8000"), True),
        (marks(host="HOST.docker.internal", origin="http://host.docker.internal"), True),
        (marks(host="localhost", origin="https://chat.example", sec_fetch_site="cross-site"), True),
        (marks(host="evil.example"), False),
        (marks(host="localhost", origin="http://chat.example"), False),
        (marks(host="evil.example", origin="https://chat.example"), False),
    ):
        assert (foreign_page(sent, is_local=is_local, **lists) is None) == passes, sent


async def test_a_listed_origins_page_reads_answers_and_errors(serve: Any) -> None:
    async with serve(origins=("https://chat.example",)) as rig:
        url = rig.url + "/v1/chat/completions"
        async with rig.client.options(url, headers=BROWSER) as response:
            assert response.status == 200
            assert response.headers["access-control-allow-origin"] == "https://chat.example"
            assert "authorization" in response.headers["access-control-allow-headers"]
        for body, status in (({"model": "m", "messages": []}, 200), ([], 400)):
            async with rig.client.post(
                url, json=body, headers={"origin": "https://chat.example"}
            ) as response:
                assert response.status == status
                assert response.headers["access-control-allow-origin"] == "https://chat.example"
        async with rig.client.options(url, headers={**BROWSER, "origin": "https://evil.example"}) as response:
            assert response.status == 403


async def test_control_endpoints_want_json(serve: Any) -> None:
    async with serve() as rig:
        for path in ("/autellix/v1/engines", "/autellix/v1/sessions"):
            async with rig.client.post(rig.url + path, data="{}") as response:
                assert response.status == 400
                assert (await response.json())["error"]["param"] == "Content-Type"


async def test_without_keys_engines_are_changed_from_the_same_machine_only(serve: Any) -> None:
    async with serve() as rig:
        path = "/autellix/v1/engines/engine/drain"
        async with rig.client.post(rig.url + path) as response:
            assert response.status == 404
        elsewhere = httpx.ASGITransport(app=rig.app, client=("10.1.2.3", 1))
        async with httpx.AsyncClient(transport=elsewhere, base_url="http://127.0.0.1:8000") as client:
            assert (await client.post(path, json={})).status_code == 403
        # A local proxy says who its client is.
        async with rig.client.post(rig.url + path, headers={"x-forwarded-for": "10.1.2.3"}) as response:
            assert response.status == 403


async def test_a_name_that_leads_to_this_machine_changes_no_engines(serve: Any) -> None:
    """Where the gateway listens on all addresses, any name may be its own; but a page may have it, too."""
    async with serve(host="0.0.0.0") as rig:
        url = rig.url + "/autellix/v1/engines/engine/drain"
        page = {"host": "evil.example", "origin": "http://evil.example"}
        for headers, status in ((page, 403), ({"host": "127.0.0.1"}, 404)):
            async with rig.client.post(url, headers=headers) as response:
                assert response.status == status


async def ask(rig: Any, request: str) -> str:
    """Send the head of a request without a body; return the head of the answer."""
    url = rig.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*url.split(":"))
    writer.write(f"{request}\r\nHost: {url}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://gateway.example/healthz", 200),
        ("http://gateway.example/v1/models?a=b", 200),
        ("http://gateway.example", 404),
        ("http://gateway.example/nothing", 404),
    ],
)
async def test_the_absolute_form_of_a_target_is_taken(serve: Any, target: str, status: int) -> None:
    async with serve(page="off") as rig:
        assert (await ask(rig, f"GET {target} HTTP/1.1")).startswith(f"HTTP/1.1 {status} ")


async def test_a_gateway_is_not_its_own_engine(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "START_PATIENCE_S", 0.0)
    async with serve() as rig:
        async with rig.client.post(rig.url + "/autellix/v1/engines", json={"url": rig.url}) as response:
            assert response.status == 400
            assert "508" in (await response.json())["error"]["message"]
        assert "choices" in await rig.chat()
