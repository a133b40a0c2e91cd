from __future__ import annotations

from typing import Any

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.vllm_plugin.settings import PluginSettings


def test_reads_the_section() -> None:
    """Scheduler settings and the report address come from the autellix key."""
    section = {
        "scheduler": {"policy": "plas", "beta": "inf"},
        "report_address": "tcp://[::]:9000",
        "record_dir": "/var/records",
    }
    settings = PluginSettings.from_additional_config({"autellix": section, "other": 1})
    assert settings.scheduler == SchedulerConfig(policy="plas", beta=float("inf"))
    assert settings.report_address == "tcp://[::]:9000"
    assert settings.record_dir == "/var/records"


@pytest.mark.parametrize("additional_config", [{}, None, {"other": 1}, object()])
def test_defaults_without_a_section(additional_config: Any) -> None:
    """An engine started without settings uses the defaults."""
    assert PluginSettings(scheduler=SchedulerConfig()) == PluginSettings.from_additional_config(
        additional_config
    )


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (3, "autellix: "),
        ({"sheduler": {}}, "autellix: .*`sheduler`"),
        ({"scheduler": []}, "autellix: .*scheduler`"),
        ({"scheduler": {"bounds": 3}}, "bounds"),
        ({"scheduler": {"period_steps": 0}}, "period_steps must be from 1 to 64, not 0"),
        ({"scheduler": {"policy": "srpt"}}, "works in the simulator only"),
        ({"report_socket": "/run/a.sock"}, "autellix: .*`report_socket`"),
        ({"record_dir": ""}, "autellix: .*record_dir`"),
        ({"report_address": "ipc://a"}, "autellix: .*report_address`"),
        ({"report_address": "0.0.0.0:9000"}, "autellix: .*report_address`"),
        ({"report_address": "tcp://*:port"}, "autellix: .*report_address`"),
        ({"report_secret": "in the open 1234"}, "autellix: .*`report_secret`"),
    ],
)
def test_names_what_is_wrong(section: Any, name: str) -> None:
    """The error names the key."""
    with pytest.raises(ValueError, match=name):
        PluginSettings.from_additional_config({"autellix": section})
