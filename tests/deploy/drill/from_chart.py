"""Pods of a rendered chart: every container's command line, variables, volumes, probes and names."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from tests.deploy.drill.images import Image
from tests.deploy.drill.pods import Container, Mount, Part, Pod, Probe, Volume, expand

Manifest = dict[str, Any]
CLUSTER_DOMAIN = "svc.cluster.local"


class UnplayableError(Exception):
    """A manifest has something that no node of ours plays."""


def pods_of(
    manifests: Sequence[Manifest],
    repositories: Mapping[str, Part],
    images: Mapping[Part, Image],
    namespace: str,
) -> list[Pod]:
    """Return the pods that a cluster would run.

    Args:
        manifests: The chart's objects.
        repositories: Which image stands for which.
        images: What the images run by themselves.
        namespace: Of the release.

    Raises:
        UnplayableError: a manifest needs more than a node of ours has.
    """
    secrets = {
        manifest["metadata"]["name"]: {
            key: base64.b64decode(value) for key, value in manifest["data"].items()
        }
        for manifest in manifests
        if manifest["kind"] == "Secret"
    }
    reader = _Reader(secrets, repositories, images, namespace, manifests)
    found: list[Pod] = []
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            count = manifest["spec"].get("replicas", 1)
            found += (reader.pod(manifest, number) for number in range(count))
        elif manifest["kind"] in ("DaemonSet", "Job", "CronJob", "Pod"):
            raise UnplayableError(f"{manifest['kind']} {manifest['metadata']['name']}")
    return found


class _Reader:
    def __init__(
        self,
        secrets: Mapping[str, Mapping[str, bytes]],
        repositories: Mapping[str, Part],
        images: Mapping[Part, Image],
        namespace: str,
        manifests: Sequence[Manifest],
    ) -> None:
        self._secrets = secrets
        self._repositories = repositories
        self._images = images
        self._namespace = namespace
        self._services = [manifest for manifest in manifests if manifest["kind"] == "Service"]

    def pod(self, owner: Manifest, number: int) -> Pod:
        template = owner["spec"]["template"]
        spec = template["spec"]
        name = f"{owner['metadata']['name']}-{number}"
        volumes = [self._volume(each) for each in spec.get("volumes", ())]
        claims = owner["spec"].get("volumeClaimTemplates", ())
        volumes += (Volume(name=claim["metadata"]["name"]) for claim in claims)
        [main] = spec["containers"]
        ready_names, names = self._names(owner, template["metadata"]["labels"], name)
        pre_stop = main.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ())
        return Pod(
            name=name,
            part=Part(template["metadata"]["labels"]["app.kubernetes.io/component"]),
            main=self._container(main, spec),
            first=tuple(self._container(each, spec) for each in spec.get("initContainers", ())),
            volumes=tuple(volumes),
            probe=_probe(main),
            ready_names=ready_names,
            names=names,
            before_stop=tuple(pre_stop),
            grace_s=float(spec.get("terminationGracePeriodSeconds", 30)),
        )

    def _container(self, container: Manifest, spec: Manifest) -> Container:
        repository = container["image"].rpartition(":")[0]
        part = self._repositories[repository]
        image = self._images[part]
        variables = dict(image.environment)
        for each in container.get("env", ()):
            value = each.get("value")
            if value is None:
                value = self._secret(each["valueFrom"]["secretKeyRef"])
            if value is not None:
                variables[each["name"]] = expand(value, variables)
        words = container.get("command", image.entrypoint)
        # A command of the manifest also replaces the image's own arguments.
        words = [*words, *container.get("args", () if "command" in container else image.command)]
        rules = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
        user = rules.get("runAsUser", image.user)
        if rules.get("runAsNonRoot") and not user:
            raise UnplayableError(f"{container['name']} must not run as root, and its image does")
        return Container(
            image=part,
            command=tuple(expand(word, variables) for word in words),
            environment=variables,
            user=user,
            is_read_only=rules.get("readOnlyRootFilesystem", False),
            mounts=tuple(
                Mount(volume=each["name"], path=each["mountPath"], is_read_only=each.get("readOnly", False))
                for each in container.get("volumeMounts", ())
            ),
        )

    def _secret(self, source: Manifest) -> str | None:
        value = self._secrets.get(source["name"], {}).get(source["key"])
        if value is None and not source.get("optional"):
            raise UnplayableError(f"Secret {source['name']} lacks {source['key']}")
        return None if value is None else value.decode()

    def _volume(self, volume: Manifest) -> Volume:
        name = volume["name"]
        if "emptyDir" in volume:
            return Volume(name=name)
        if "hostPath" in volume:
            return Volume(name=name, source=volume["hostPath"]["path"])
        if "secret" in volume:
            return Volume(name=name, files=self._secrets[volume["secret"]["secretName"]])
        raise UnplayableError(f"volume {name}")

    def _names(
        self, owner: Manifest, labels: Mapping[str, str], name: str
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names while it is ready, and those that stay: a Service with an address of its own."""
        ready: list[str] = []
        always: list[str] = []
        for service in self._services:
            if not service["spec"]["selector"].items() <= labels.items():
                continue
            title, spec = service["metadata"]["name"], service["spec"]
            if spec.get("clusterIP") == "None":
                target = always if spec.get("publishNotReadyAddresses") else ready
                if owner["spec"].get("serviceName") == title:
                    target += self._all_names(f"{name}.{title}")
            else:
                _check_ports(service, owner)
                always += self._all_names(title)
        return tuple(ready), tuple(always)

    def _all_names(self, name: str) -> list[str]:
        """Return how pods of the namespace may write it."""
        namespace = self._namespace
        return [
            name,
            f"{name}.{namespace}",
            f"{name}.{namespace}.svc",
            f"{name}.{namespace}.{CLUSTER_DOMAIN}",
        ]


def _check_ports(service: Manifest, owner: Manifest) -> None:
    """Refuse a Service that translates ports: names lead straight to pods here."""
    [container] = owner["spec"]["template"]["spec"]["containers"]
    inside = {port["name"]: port["containerPort"] for port in container["ports"]}
    for port in service["spec"]["ports"]:
        if inside[port["targetPort"]] != port["port"]:
            raise UnplayableError(f"Service {service['metadata']['name']} translates port {port['port']}")


def _probe(container: Manifest) -> Probe:
    probe = container["readinessProbe"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    how = probe.get("httpGet") or probe["tcpSocket"]
    return Probe(
        port=ports.get(how["port"], how["port"]),
        path=how.get("path"),
        period_s=probe.get("periodSeconds", 10),
        failures=probe.get("failureThreshold", 3),
    )
