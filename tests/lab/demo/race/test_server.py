"""The server of the race: its files and its state, on loopback, to pages of its own only."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.lab.demo.race.race_turns import results, turn

from autellix_lab.demo.race.race import Race
from autellix_lab.demo.race.server import served


@pytest.fixture(scope="module")
def race() -> Race:
    return Race(("fcfs", "boost"))


@pytest.fixture(scope="module")
def url(race: Race) -> Iterator[str]:
    # Shared, for a server takes half a second to end.
    with served(race) as found:
        yield found


def get(url: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/race.js", "text/javascript; charset=utf-8"),
        ("/page/dom.js", "text/javascript; charset=utf-8"),
        ("/page/race.css", "text/css; charset=utf-8"),
        ("/race", "application/json"),
    ],
)
def test_each_file_has_its_kind_and_a_strict_policy(url: str, path: str, kind: str) -> None:
    with get(url, path) as answer:
        assert (answer.status, answer.getheader("content-type")) == (200, kind)
        assert "default-src 'none'" in str(answer.getheader("content-security-policy"))
        assert answer.read()


@pytest.mark.parametrize("path", ["/page/nothing.js", "/page/../server.py", "/nothing"])
def test_there_is_nothing_else(url: str, path: str) -> None:
    with get(url, path) as answer:
        assert (answer.status, answer.read()) == (404, b"")


def test_another_sites_name_reads_nothing(url: str) -> None:
    with get(url, "/race", host="example.org") as answer:
        assert (answer.status, answer.read()) == (403, b"")


def test_the_state_is_what_the_page_does_not_know(url: str, race: Race) -> None:
    take = race.begin(turn("fcfs"))
    for result in results(s_per_call=1.0):
        take(result)
    with get(url, "/race?heat=1&fcfs=2&boost=x") as answer:
        state = json.loads(answer.read())

    assert len(state["lanes"]["fcfs"]["calls"]) == len(results(s_per_call=1.0)) - 2
