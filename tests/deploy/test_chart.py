"""The Helm chart: linted and rendered by Helm, valid for Kubernetes, true to the program that it starts."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.chart import (
    CHART,
    NAMESPACE,
    container,
    kinds,
    pods,
    render,
    the,
    variables,
)

from autellix_backend.engines.factory import make_remote
from autellix_backend.engines.vllm_command import RESERVED_ARGUMENTS, SCHEDULER_CLASS
from autellix_backend.gateway.tenancy.file import read_tenants
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.settings import (
    Settings,
    TenantLimits,
    layer_from_environment,
    load_settings,
    report_secret,
)
from autellix_backend.settings.scheduler import scheduler_from_mapping
from autellix_backend.vllm_plugin.settings import PluginSettings

KUBERNETES = ("1.27.0", "1.34.0")
EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "gateway": {
        "autoscaling": {"enabled": True},
        "podAnnotations": {"note": "a"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "serving",
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "networkPolicy": {"extraFrom": [{"namespaceSelector": {}}]},
    },
    "settings": {
        "gateway": {"shutdown_grace_s": 7.5, "strict_identity": True},
        "balancer": {"name": "locality"},
        "limits": {"max_calls": 3},
        "observe": {"call_log": "-"},
        "store": {"key_prefix": "mine"},
    },
    "scheduler": {"policy": "plas", "bounds": [0.5, 2, 8]},
    "service": {"annotations": {"note": "a"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "llm.example.org",
        "tlsSecret": "tls",
        "annotations": {"a": "b"},
    },
    "engine": {
        "servedModelName": "m",
        "extraArgs": ["--max-num-seqs=64"],
        "huggingFaceSecret": "hf",
        "cacheSize": "50Gi",
        "storageClassName": "fast",
        "extraEnv": [{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}],
        "extraVolumes": [{"name": "data", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
        "podAnnotations": {"note": "a"},
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "networkPolicy": {"extraFrom": [{"namespaceSelector": {}}]},
    },
    "externalEngines": ["http://gpu9:8000"],
    "tenants": {"existingSecret": "tenants"},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"team": "a"}, "bearerSecret": "admin"}},
}


def settings_of(values: dict[str, Any] | None = None) -> Settings:
    """Return the settings that a gateway of the chart builds from its variables."""
    return load_settings(environ=plain(variables(render(values), "gateway")))


def plain(found: dict[str, Any]) -> dict[str, str]:
    """Return variables with texts for what comes from Secrets."""
    texts = {name: value if isinstance(value, str) else "0123456789abcdef" for name, value in found.items()}
    return texts | {"AUTELLIX_STORE_URL": "redis://:secret@ax-redis:6379/0"}


def test_helm_lint_passes() -> None:
    helm = pytest.importorskip("helm_python", reason="Helm is not installed: `helm-python-sdk`")
    for values in (None, EVERYTHING):
        report = helm.lint(CHART, values, strict=True)
        assert report["errors"] == []
        assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_all_objects_are_valid_for_kubernetes(values: dict[str, Any], version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    manifests = render(values)
    for manifest in manifests:
        # Not Kubernetes' own, so its schema is not there.
        if manifest["kind"] != "ServiceMonitor":
            validator.validate(manifest, version, strict=True)
    assert len(manifests) == (15 if values else 13)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"gateway": {"replicas": 0}}, "replicas"),
        ({"gateway": {"replica": 2}}, "replica"),
        ({"gateway": {"image": {"pullPolicy": "Sometimes"}}}, "pullPolicy"),
        ({"settings": {"gateway": {"token_secret": "in the open 123"}}}, "token_secret"),
        ({"settings": {"gateway": {"port": 80}}}, "port"),
        ({"settings": {"gateway": {"nonsense": 1}}}, "nonsense"),
        ({"settings": {"gateway": {"shutdown_grace_s": -5}}}, "shutdown_grace_s"),
        ({"settings": {"gatway": {}}}, "gatway"),
        ({"settings": {"store": {"url": "redis://:secret@host"}}}, "url"),
        ({"settings": {"engine": {"max_in_flight": {"a": 1}}}}, "max_in_flight"),
        ({"settings": {"engine": {"report_secret": "in the open 123"}}}, "report_secret"),
        ({"engine": {"model": ""}}, "model"),
        ({"engine": {"autoscaling": {"enabled": True}}}, "prometheus"),
        ({"engine": {"extraArgs": ["--port=9"]}}, "extraArgs"),
        ({"externalEngines": ["gpu1:8000"]}, "externalEngines"),
        ({"ingress": {"enabled": True}}, "host"),
        ({"engine": {"enabled": False}}, "there is no engine"),
        ({"store": {"redis": {"enabled": False}}}, "one process table"),
        ({"tenants": {"open": True, "existingSecret": "mine"}}, "expected one of them"),
        ({"settings": {"gateway": {"open": True}}}, "open"),
        ({"ingress": {"enabled": True, "host": "a.example"}}, "gateway.networkPolicy.extraFrom"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "gateway.networkPolicy.extraFrom"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], named: str) -> None:
    helm = pytest.importorskip("helm_python", reason="Helm is not installed: `helm-python-sdk`")
    with pytest.raises(helm.HelmError, match=re.escape(named)):
        render(values)


def test_gateways_parse_their_variables() -> None:
    """Each names a setting that exists, with a value that it takes."""
    settings = settings_of()
    assert settings.gateway.host == "0.0.0.0"
    assert settings.engine.urls == (
        f"http://ax-engine-0.ax-engine.{NAMESPACE}.svc:8000",
        f"http://ax-engine-1.ax-engine.{NAMESPACE}.svc:8000",
    )
    assert not settings.engine.must_answer
    assert settings.store.is_shared


def test_settings_keep_their_types() -> None:
    """Whole numbers stay whole, lists are lists."""
    settings = settings_of(EVERYTHING)
    assert settings.gateway.shutdown_grace_s == 7.5
    assert settings.gateway.strict_identity
    assert settings.gateway.tenants_file is not None
    assert settings.scheduler.bounds == (0.5, 2, 8)
    assert settings.limits.max_calls == 3
    assert settings.engine.urls[-1] == "http://gpu9:8000"


def test_the_values_name_settings_that_exist() -> None:
    """Those that the schema keeps for the chart itself too: a renamed setting would slip through."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    sections = schema["properties"]["settings"]["properties"]
    known = Settings()
    for section, rules in sections.items():
        for field in rules.get("propertyNames", {"not": {"enum": ()}})["not"]["enum"]:
            assert hasattr(getattr(known, section), field), f"{section}.{field}"
    layer = layer_from_environment(dict.fromkeys(variables(render(), "gateway"), ""))
    assert set(sections) | {"scheduler"} >= {name.partition(".")[0] for name in layer}


def test_engines_have_the_gateways_policy() -> None:
    manifests = render({"scheduler": {"policy": "plas", "bounds": [0.5, 2], "period_steps": 4}})
    args = container(manifests, "engine")["args"]
    given = dict(zip(args[::2], args[1::2], strict=True))
    assert given["--scheduler-cls"] == SCHEDULER_CLASS
    told = PluginSettings.from_additional_config(json.loads(given["--additional-config"]))
    expected = scheduler_from_mapping({"policy": "plas", "bounds": [0.5, 2], "period_steps": 4})
    assert told.scheduler == expected


def test_engines_report_where_gateways_ask() -> None:
    """At the port that follows from the address, and with one secret, which is in no argument."""
    manifests = render()
    args = container(manifests, "engine")["args"]
    told = PluginSettings.from_additional_config(json.loads(args[args.index("--additional-config") + 1]))
    engine = settings_of().engine
    for number, url in enumerate(engine.urls):
        remote = make_remote(engine, url, name=f"remote-{number}", kind="vllm")
        host = f"ax-engine-{number}.ax-engine.{NAMESPACE}.svc"
        assert list(remote.report_endpoints) == [f"tcp://{host}:9000"]
    assert told.report_address == "tcp://0.0.0.0:9000"
    secrets = {
        str(variables(manifests, each)["AUTELLIX_ENGINE_REPORT_SECRET"]) for each in ("gateway", "engine")
    }
    assert secrets == {str({"secretKeyRef": {"name": "ax-secrets", "key": "report-secret"}})}
    value = secret(manifests, "ax-secrets")["report-secret"]
    assert report_secret({"AUTELLIX_ENGINE_REPORT_SECRET": value}) == value


def test_a_secret_of_others_may_lack_that_for_reports() -> None:
    manifests = render({"existingSecret": "mine"})
    for component in ("gateway", "engine"):
        source = variables(manifests, component)["AUTELLIX_ENGINE_REPORT_SECRET"]["secretKeyRef"]
        assert source == {"name": "mine", "key": "report-secret", "optional": True}


def test_only_gateways_reach_engines() -> None:
    [rule] = the(render(), "NetworkPolicy", "engine")["spec"]["ingress"]
    [peer] = rule["from"]
    gateway = the(render(), "Deployment", "gateway")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= gateway.items()
    assert rule["ports"] == [{"port": "http"}, {"port": 9000, "endPort": 9063}]
    prometheus = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    values = {"engine": {"networkPolicy": {"extraFrom": [prometheus]}, "scheduler": False}}
    rules = the(render(values), "NetworkPolicy", "engine")["spec"]["ingress"]
    assert [rule["ports"] for rule in rules] == [[{"port": "http"}]] * 2
    assert rules[1]["from"] == [prometheus]
    without = render({"engine": {"networkPolicy": {"enabled": False}}})
    assert ports_open_to_others(without).keys() == {"gateway", "redis"}


def ports_open_to_others(manifests: list[Any]) -> dict[str, Any]:
    """Return the rules of the network policies by component."""
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["ingress"]
        for each in manifests
        if each["kind"] == "NetworkPolicy"
    }


def test_only_gateways_reach_redis_and_only_the_namespace_reaches_gateways() -> None:
    manifests = render()
    rules = ports_open_to_others(manifests)
    [redis], [gateway] = rules["redis"], rules["gateway"]
    labels = the(manifests, "Deployment", "gateway")["spec"]["template"]["metadata"]["labels"]
    assert redis["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    assert (len(redis["from"]), redis["ports"]) == (1, [{"port": "redis"}])
    assert gateway == {"from": [{"podSelector": {}}], "ports": [{"port": "http"}]}
    controller = {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}
    opened = render({"gateway": {"networkPolicy": {"extraFrom": [controller]}}})
    assert ports_open_to_others(opened)["gateway"][0]["from"] == [{"podSelector": {}}, controller]
    closed = render({"gateway": {"networkPolicy": {"enabled": False}}})
    assert ports_open_to_others(closed).keys() == {"engine", "redis"}


def secret(manifests: list[Any], name: str) -> dict[str, str]:
    """Return the values of a Secret."""
    [found] = [each for each in manifests if each["kind"] == "Secret" and each["metadata"]["name"] == name]
    return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}


def test_the_charts_own_keys_are_those_of_its_tenants_file(tmp_path: Path) -> None:
    values = secret(render(), "ax-tenants")
    file = tmp_path / "tenants.toml"
    file.write_text(values["tenants.toml"])
    tenants = Tenants(read_tenants(file, TenantLimits()))
    found = [tenants.authenticate({"x-api-key": values[key]}) for key in ("key", "admin-key")]
    assert [(tenant.name, tenant.is_admin) for tenant in found] == [("default", False), ("operators", True)]


def test_gateways_ask_for_keys_unless_they_are_told_not_to() -> None:
    manifests = render()
    assert load_settings(environ=plain(variables(manifests, "gateway"))).gateway.tenants_file is not None
    assert variables(manifests, "gateway")["AUTELLIX_API_KEY"]["secretKeyRef"]["name"] == "ax-tenants"
    manifests = render({"tenants": {"existingSecret": "mine"}})
    assert variables(manifests, "gateway")["AUTELLIX_API_KEY"]["secretKeyRef"]["name"] == "mine"
    manifests = render({"tenants": {"open": True}})
    gateway = load_settings(environ=plain(variables(manifests, "gateway"))).gateway
    assert (gateway.open, gateway.tenants_file) == (True, None)
    assert len(manifests) == 12


def test_extra_arguments_replace_none_of_ours() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    refused = re.compile(schema["properties"]["engine"]["properties"]["extraArgs"]["items"]["not"]["pattern"])
    args = container(render(), "engine")["args"]
    ours = {word for word in args if word.startswith("--")} | set(RESERVED_ARGUMENTS)
    assert [name for name in ours if not refused.search(name)] == []


def test_without_the_scheduler_engines_are_plain_vllm() -> None:
    manifests = render({"engine": {"scheduler": False}})
    assert "initContainers" not in pods(manifests)["engine"]
    assert "--scheduler-cls" not in container(manifests, "engine")["args"]
    assert "PYTHONPATH" not in variables(manifests, "engine")


def test_gateways_and_engines_share_a_key() -> None:
    manifests = render()
    assert (
        variables(manifests, "gateway")["AUTELLIX_ENGINE_API_KEY"]
        == variables(manifests, "engine")["VLLM_API_KEY"]
    )
    used = {
        source["secretKeyRef"]["key"]
        for component in pods(manifests)
        for source in variables(manifests, component).values()
        if isinstance(source, dict) and source["secretKeyRef"]["name"] == "ax-secrets"
    }
    assert used == secret(manifests, "ax-secrets").keys()


def test_service_links_are_disabled() -> None:
    """It would name one AUTELLIX_GATEWAY_PORT for a Service `autellix-gateway`."""
    assert all(spec["enableServiceLinks"] is False for spec in pods(render(EVERYTHING)).values())


@pytest.mark.parametrize("grace_s", [None, 0, 7.5, 60])
def test_a_pod_may_take_as_long_to_end_as_its_calls(grace_s: float | None) -> None:
    given = {} if grace_s is None else {"shutdown_grace_s": grace_s}
    manifests = render({"settings": {"gateway": given}})
    if grace_s is None:
        grace_s = Settings().gateway.shutdown_grace_s
    spec = pods(manifests)["gateway"]
    [_, sleep_s] = container(manifests, "gateway")["lifecycle"]["preStop"]["exec"]["command"]
    assert spec["terminationGracePeriodSeconds"] >= int(sleep_s) + grace_s + 5


def test_ports_match() -> None:
    manifests = render()
    for component in ("gateway", "engine", "redis"):
        inside = container(manifests, component)["ports"]
        outside = the(manifests, "Service", component)["spec"]["ports"]
        assert [port["targetPort"] for port in outside] == [port["name"] for port in inside]
    [port] = container(manifests, "gateway")["ports"]
    assert variables(manifests, "gateway")["AUTELLIX_GATEWAY_PORT"] == str(port["containerPort"])
    args = container(manifests, "engine")["args"]
    port, reports = container(manifests, "engine")["ports"]
    told = PluginSettings.from_additional_config(json.loads(args[args.index("--additional-config") + 1]))
    assert told.report_address == f"tcp://0.0.0.0:{reports['containerPort']}"
    assert args[args.index("--port") + 1] == str(port["containerPort"])


def test_an_existing_store_replaces_the_charts() -> None:
    manifests = render({"store": {"existingSecret": "redis"}})
    assert "redis" not in pods(manifests)
    url = variables(manifests, "gateway")["AUTELLIX_STORE_URL"]
    assert url == {"secretKeyRef": {"name": "redis", "key": "url"}}


def test_one_gateway_needs_no_store() -> None:
    manifests = render({"gateway": {"replicas": 1}, "store": {"redis": {"enabled": False}}})
    assert "AUTELLIX_STORE_URL" not in variables(manifests, "gateway")


def test_the_autoscaler_and_the_deployment_do_not_fight() -> None:
    assert "HorizontalPodAutoscaler" not in kinds(render())
    manifests = render(EVERYTHING)
    assert "replicas" not in the(manifests, "Deployment", "gateway")["spec"]
    assert the(manifests, "HorizontalPodAutoscaler")["spec"]["maxReplicas"] == 8


def test_engines_scale_by_their_saturation() -> None:
    manifests = render({"engine": {"autoscaling": {"enabled": True, "prometheus": "http://prometheus:9090"}}})
    assert "replicas" not in the(manifests, "StatefulSet", "engine")["spec"]
    scaled = the(manifests, "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == the(manifests, "StatefulSet", "engine")["metadata"]["name"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 8)
    [trigger] = scaled["triggers"]
    assert trigger["metadata"]["threshold"] == "0.65"
    assert set(re.findall(r"autellix_\w+", trigger["metadata"]["query"])) == {"autellix_engine_saturation"}
    # Gateways know the addresses of all that there may be, and wait for those.
    assert len(variables(manifests, "gateway")["AUTELLIX_ENGINE_URLS"].split()) == 8


def test_engines_scale_by_an_external_metric_without_keda() -> None:
    manifests = render(
        {"engine": {"autoscaling": {"enabled": True, "externalMetric": "autellix_saturation"}}}
    )
    assert "replicas" not in the(manifests, "StatefulSet", "engine")["spec"]
    assert "ScaledObject" not in kinds(manifests)
    scaler = the(manifests, "HorizontalPodAutoscaler")
    [metric] = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "autellix_saturation"
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "0.65"}
    assert len(variables(manifests, "gateway")["AUTELLIX_ENGINE_URLS"].split()) == 8
    validator = pytest.importorskip("kubernetes_validate")
    for version in KUBERNETES:
        validator.validate(scaler, version, strict=True)


def test_the_chart_works_with_running_engines_only() -> None:
    manifests = render({"engine": {"enabled": False}, "externalEngines": ["http://gpu9:8000"]})
    assert kinds(manifests) == {"Deployment", "Service", "Secret", "PodDisruptionBudget", "NetworkPolicy"}
    assert "AUTELLIX_ENGINE_REPORT_SECRET" not in variables(manifests, "gateway")
    assert variables(manifests, "gateway")["AUTELLIX_ENGINE_URLS"] == "http://gpu9:8000"


def test_an_existing_secret_replaces_the_charts() -> None:
    manifests = render({"existingSecret": "mine"})
    assert [each["metadata"]["name"] for each in manifests if each["kind"] == "Secret"] == ["ax-tenants"]
    source = variables(manifests, "gateway")["AUTELLIX_GATEWAY_TOKEN_SECRET"]
    assert source == {"secretKeyRef": {"name": "mine", "key": "token-secret"}}
