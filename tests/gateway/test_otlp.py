"""What an OpenTelemetry collector receives of a gateway, once it has stopped."""

from __future__ import annotations

from typing import Any

import pytest

from autellix_backend.settings import ObserveSettings

pytest.importorskip("opentelemetry.sdk.metrics", reason="the extra otel is not installed")

from tests.observe.otlp_receiver import receiving


async def test_a_gateway_sends_spans_and_metrics_of_its_calls(serve: Any) -> None:
    with receiving() as receiver:
        async with serve(observe=ObserveSettings(otlp_endpoint=receiver.url)) as rig:
            await rig.chat({"X-Autellix-Program-ID": "p", "X-Autellix-Final": "true"})

    assert set(receiver.spans()) == {"chat autellix.fake-model", "invoke_agent"}
    tokens = receiver.metrics()["gen_ai.client.token.usage"]
    kinds = {
        attribute.value.string_value
        for point in tokens.histogram.data_points
        for attribute in point.attributes
        if attribute.key == "gen_ai.token.type"
    }
    assert kinds == {"input", "output"}
