"""The alert rules fire on what they are for, by Prometheus' own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import yaml
from tests.fakes.engine import MODEL_NAME, FakeBehaviour, FakeEngine
from tests.gateway.calls.agent_clients import Client, Codex, OpenCode
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.identity.prefix_breaks import Kind
from autellix_backend.settings import Settings

TOOL = shutil.which("promtool")
FOLDER = Path(__file__).parent
RULES = FOLDER.parents[1] / "deploy" / "grafana" / "alerts.yaml"
MINUTES = 30
needs_tool = pytest.mark.skipif(
    TOOL is None, reason="promtool, of Debian's package prometheus, is not installed"
)


def check(*command: str, folder: Path = FOLDER) -> None:
    assert TOOL is not None
    found = subprocess.run([TOOL, *command], cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@needs_tool
@pytest.mark.parametrize(
    "command", [("check", "rules", "../../deploy/grafana/alerts.yaml"), ("test", "rules", "alerts_test.yaml")]
)
def test_alerts_fire(command: tuple[str, ...]) -> None:
    check(*command)


class _Moves(OpenCode):
    """A client whose directory, in the description of a tool, is another one in each request."""

    def step(self) -> None:
        super().step()
        self.folder = f"/work/{self.sent}"


@needs_tool
async def test_a_client_that_breaks_its_prefixes_fires_the_alert(tmp_path: Path) -> None:
    """Two clients call through a gateway, whose page of metrics is what Prometheus scrapes each minute."""
    good, bad = Codex(1), _Moves(2)
    scrapes: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        engine = FakeEngine(FakeBehaviour(), report_address=f"ipc://{folder}/reports")
        await engine.start()
        try:
            async with listening(create_app(Settings(), engine)) as url, aiohttp.ClientSession() as session:
                for _ in range(MINUTES):
                    for client, share in ((good, 0.98), (bad, 0.02)):
                        engine.behaviour = replace(engine.behaviour, cached_share=share)
                        await _call(session, url, client)
                    scrapes.append(await _scrape(session, url))
        finally:
            await engine.stop()
    names = scrapes[-1].keys()
    series = [
        {"series": name, "values": " ".join(f"{scrape.get(name, 0.0):g}" for scrape in scrapes)}
        for name in names
    ]
    (name,) = [each for each in names if "prefix_breaks" in each]
    assert name == 'autellix_prefix_breaks_total{client="opencode/1.4.3",kind="tools"}'
    rule = next(
        rule
        for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "AutellixClientBreaksPrefixes"
    )
    words = "100% of the calls of opencode/1.4.3 "
    summary = words + rule["annotations"]["summary"].partition("{{ $labels.client }} ")[2]
    fired = {
        "exp_labels": {"severity": "warning", "client": "opencode/1.4.3"},
        "exp_annotations": {"summary": summary, "description": rule["annotations"]["description"]},
    }
    test = {"eval_time": f"{MINUTES - 1}m", "alertname": rule["alert"], "exp_alerts": [fired]}
    tests = [{"interval": "1m", "input_series": series, "alert_rule_test": [test]}]
    path = tmp_path / "drill.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    check("test", "rules", str(path))


async def _call(session: aiohttp.ClientSession, url: str, client: Client) -> None:
    path = "/v1/responses" if isinstance(client, Codex) else "/v1/chat/completions"
    headers = {"X-Autellix-Program-ID": client.agent[:5], "User-Agent": client.agent}
    body = {**client.body(), "model": MODEL_NAME, "stream": False}
    async with session.post(url + path, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
    client.step()


async def _scrape(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Return the values of the series about prefixes, by their names as Prometheus writes them."""
    async with session.get(url + "/metrics") as response:
        lines = [line.rpartition(" ") for line in (await response.text()).splitlines()]
    return {name: float(value) for name, _, value in lines if re.match(r"autellix_prefix_\w+_total", name)}


def test_the_alert_names_kinds_of_breaks() -> None:
    text = RULES.read_text(encoding="utf-8")
    kinds = text.partition('autellix_prefix_breaks_total{kind=~"')[2].partition('"')[0].split("|")
    assert set(kinds) < set(Kind)
