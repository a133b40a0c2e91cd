"""One round of the red team: a hostile tenant tries everything, and the quiet one goes on working."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SEED = 7
FUZZED_BODIES = 60
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
    *("/v1/score", "/v1/rerank", "/classify", "/pooling", "/tokenize", "/v1/messages/count_tokens"),
    *("/autellix/v1/sessions", "/autellix/v1/engines"),
)


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import redteam_attacks

    return redteam_attacks


@pytest.mark.timeout(600)
def test_the_quiet_tenant_is_served_and_nothing_is_left() -> None:
    options = ["--rounds", "1", "--any-wait", "--json"]
    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / "redteam.py"), *options],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    report = json.loads(run.stdout)
    assert report["complaints"] == []
    assert run.returncode == 0
    made = {answer.partition(":")[0] for answer in report["answers"]}
    assert {"fuzzed_bodies", "partial_bodies", "listings", "many_feeds", "engine_answers"} <= made


@pytest.mark.parametrize("path", PATHS)
async def test_a_fuzzed_body_gets_an_answer_in_its_dialect(serve: Any, attacks: Any, path: str) -> None:
    draw = random.Random(f"{SEED}{path}")
    async with serve(recovery_wait_s=0.0) as rig:
        for _ in range(FUZZED_BODIES):
            body, asked = attacks.fuzzed_body(draw), len(rig.engine.requests)
            headers = {"content-type": "application/json"}
            async with rig.client.post(rig.url + path, data=body, headers=headers) as response:
                answer = await response.read()
                if response.status < 400:
                    continue
                error = json.loads(answer)["error"]
                # The engine's own errors pass unchanged.
                is_engines = len(rig.engine.requests) > asked
                assert response.status != 500 or is_engines, (body, answer)
                assert error["message"] and error["type"], (body, answer)
                if path.startswith("/v1/messages") and not is_engines:
                    assert json.loads(answer)["type"] == "error", (body, answer)
        await rig.settled()
