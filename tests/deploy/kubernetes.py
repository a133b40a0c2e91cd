"""A Kubernetes API of one process, with which `helm` and `kubectl` talk as with a cluster.

It keeps objects, makes the pods of Deployments and StatefulSets and calls them ready. Nothing runs in a pod:
`exec` answers with the pod, the container and the words of the command.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from aiohttp import WSMsgType, web

__all__ = ["KubernetesObjects", "serve_kubernetes"]

Object = dict[str, Any]
WORKLOADS = ("deployments", "statefulsets")
RESOURCES = {
    "v1": {
        "namespaces": "Namespace",
        "pods": "Pod",
        "secrets": "Secret",
        "services": "Service",
        "configmaps": "ConfigMap",
    },
    "apps/v1": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy", "ingresses": "Ingress"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
}
PROTOBUF = b"k8s\0"
WHEN = "2026-01-01T00:00:00Z"


class KubernetesObjects:
    """The objects of a cluster, by resource, namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self._version = 0

    def put(self, resource: str, namespace: str, body: Object) -> Object:
        """Keep an object, its pods as well, and return it as a server answers."""
        self._version += 1
        name = body["metadata"]["name"]
        known = self.objects.get((resource, namespace, name), {})
        metadata = body["metadata"]
        metadata["namespace"] = namespace
        metadata["uid"] = known.get("metadata", {}).get("uid", str(uuid.uuid4()))
        metadata["creationTimestamp"] = WHEN
        metadata["resourceVersion"] = str(self._version)
        metadata["generation"] = 1
        if resource == "secrets" and (plain := body.pop("stringData", None)):
            body["data"] = {**body.get("data", {}), **plain}
        self.objects[resource, namespace, name] = body
        if resource in WORKLOADS:
            self._roll_out(namespace, body)
        return body

    def list(self, resource: str, namespace: str | None, labels: str, fields: str) -> list[Object]:
        """Return the objects that two selectors choose."""
        return [
            each
            for (kind, place, _), each in sorted(self.objects.items())
            if kind == resource
            and namespace in (None, place)
            and _has(each["metadata"].get("labels", {}), labels)
            and _has({f"metadata.{name}": value for name, value in each["metadata"].items()}, fields)
        ]

    def _roll_out(self, namespace: str, workload: Object) -> None:
        count = workload["spec"].get("replicas", 1)
        workload["spec"].setdefault("updateStrategy", {"type": "RollingUpdate"})
        workload["status"] = {
            "observedGeneration": 1,
            "currentRevision": "1",
            "updateRevision": "1",
            **dict.fromkeys(
                ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "currentReplicas"),
                count,
            ),
        }
        for number in range(count):
            pod = copy.deepcopy(workload["spec"]["template"])
            pod |= {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"}}
            pod["metadata"]["name"] = f"{workload['metadata']['name']}-{number}"
            pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            self.put("pods", namespace, pod)


def _has(values: Object, selector: str) -> bool:
    """Tell whether values fit a selector such as `a=b,c=d`."""
    terms = [term.partition("=") for term in selector.split(",") if term]
    return all(values.get(name) == value for name, _, value in terms)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and contents of a protocol buffer's fields that have a length."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = number()
        length = number()
        if tag & 7 == 2:
            yield tag >> 3, message[at : at + length]
            at += length


def _secret(content: bytes) -> Object:
    """Return a Secret in Kubernetes' protocol buffers: Helm keeps its releases in them."""
    [raw] = [value for number, value in _fields(content.removeprefix(PROTOBUF)) if number == 2]
    metadata: Object = {"labels": {}}
    body: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {}}
    for number, value in _fields(raw):
        if number == 2:
            entry = dict(_fields(value))
            body["data"][entry[1].decode()] = base64.b64encode(entry[2]).decode()
        elif number == 3:
            body["type"] = value.decode()
        elif number == 1:
            for inner, text in _fields(value):
                if inner == 1:
                    metadata["name"] = text.decode()
                elif inner == 11:
                    label = dict(_fields(text))
                    metadata["labels"][label[1].decode()] = label[2].decode()
    return body


def _merged(old: Any, new: Any) -> Any:
    """Return an object with a JSON merge patch."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copy.deepcopy(new)
    merged = {name: value for name, value in old.items() if new.get(name, value) is not None}
    return merged | {name: _merged(old.get(name), value) for name, value in new.items() if value is not None}


class _KubernetesApi:
    """The paths of the API."""

    def __init__(self, cluster: KubernetesObjects) -> None:
        self._cluster = cluster
        self.application = web.Application(client_max_size=16 << 20)
        self.application.router.add_route("*", "/{path:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if found := self._discover(parts):
            return web.json_response(found)
        version = "v1" if parts[0] == "api" else "/".join(parts[1:3])
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = None
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        resource, name, part = [*parts, "", "", ""][:3]
        if resource not in RESOURCES.get(version, {}):
            return _failure(404, "NotFound", f"there is no {request.path}")
        if part in ("exec", "portforward"):
            return await self._stream(request, namespace or "", name, part)
        if name:
            return await self._one(request, resource, namespace or "", name)
        return await self._many(request, version, resource, namespace)

    def _discover(self, parts: list[str]) -> Object | None:
        if parts == ["version"]:
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        if parts == ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        if parts == ["apis"]:
            groups = []
            for each in RESOURCES:
                if "/" in each:
                    name, _, short = each.partition("/")
                    served = {"groupVersion": each, "version": short}
                    groups.append({"name": name, "versions": [served], "preferredVersion": served})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if parts == ["openapi", "v3"]:
            roots = [_root(each) for each in RESOURCES]
            return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}
        if parts[:2] == ["openapi", "v3"]:
            return _described("/".join(parts[3:]))
        version = "/".join(parts[1:])
        if parts[0] not in ("api", "apis") or version not in RESOURCES:
            return None
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": [
                {
                    "name": name,
                    "singularName": kind.lower(),
                    "kind": kind,
                    "shortNames": ["deploy"] if kind == "Deployment" else [],
                    "namespaced": name != "namespaces",
                    "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                }
                for name, kind in RESOURCES[version].items()
            ],
        }

    async def _many(
        self, request: web.Request, version: str, resource: str, namespace: str | None
    ) -> web.StreamResponse:
        if request.method == "POST":
            content = await request.read()
            body = _secret(content) if content.startswith(PROTOBUF) else json.loads(content)
            if (resource, namespace or "", body["metadata"]["name"]) in self._cluster.objects:
                return _failure(409, "AlreadyExists", f"{body['metadata']['name']} exists already")
            return web.json_response(self._cluster.put(resource, namespace or "", body), status=201)
        if "watch" in request.query:
            # Nothing changes by itself: what is listed first is all that there is to see.
            return _failure(400, "BadRequest", "there is no watch")
        query = request.query
        found = self._cluster.list(
            resource, namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        kind = f"{RESOURCES[version][resource]}List"
        metadata = {"resourceVersion": "1"}
        return web.json_response({"kind": kind, "apiVersion": version, "metadata": metadata, "items": found})

    async def _one(
        self, request: web.Request, resource: str, namespace: str, name: str
    ) -> web.StreamResponse:
        known = self._cluster.objects.get((resource, namespace, name))
        if request.method in ("PUT", "PATCH"):
            content = await request.read()
            sent = _secret(content) if content.startswith(PROTOBUF) else yaml.safe_load(content)
            # Applied by the server, an object is made where there is none.
            if known is None and "apply" not in request.content_type:
                return _failure(404, "NotFound", f"{resource} {name!r} not found")
            body = sent if request.method == "PUT" else _merged(known or {}, sent)
            return web.json_response(self._cluster.put(resource, namespace, body))
        if known is None:
            return _failure(404, "NotFound", f"{resource} {name!r} not found")
        if request.method == "DELETE":
            del self._cluster.objects[resource, namespace, name]
            return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        return web.json_response(known)

    async def _stream(self, request: web.Request, namespace: str, name: str, part: str) -> web.StreamResponse:
        pod = self._cluster.objects["pods", namespace, name]
        asked = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        socket = web.WebSocketResponse(protocols=asked)
        await socket.prepare(request)
        if part == "exec":
            container = request.query.get("container", pod["spec"]["containers"][0]["name"])
            words = [name, container, *request.query.getall("command")]
            await socket.send_bytes(b"\x01" + " ".join(words).encode() + b"\n")
            await socket.send_bytes(b"\x03" + json.dumps({"status": "Success"}).encode())
        else:
            async for message in socket:
                if message.type is WSMsgType.ERROR:
                    break
        await socket.close()
        return socket


def _root(version: str) -> str:
    return f"api/{version}" if version == "v1" else f"apis/{version}"


def _described(version: str) -> Object:
    """Return as much of OpenAPI as says that the server checks fields."""
    group, _, short = version.rpartition("/")
    paths = {}
    for name, kind in RESOURCES.get(version, {}).items():
        known = {"group": group, "version": short, "kind": kind}
        patch = {
            "x-kubernetes-group-version-kind": known,
            "parameters": [{"name": "fieldValidation", "in": "query"}],
            "responses": {},
        }
        paths[f"/{_root(version)}/namespaces/{{namespace}}/{name}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "objects", "version": "1"}, "paths": paths}


def _failure(status: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return web.json_response({**body, "reason": reason, "message": message}, status=status)


@contextlib.contextmanager
def serve_kubernetes(kubeconfig: Path) -> Iterator[KubernetesObjects]:
    """Serve an empty cluster, and write how it is reached."""
    cluster = KubernetesObjects()
    loop = asyncio.new_event_loop()

    async def start() -> tuple[web.AppRunner, int]:
        runner = web.AppRunner(_KubernetesApi(cluster).application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield cluster
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
