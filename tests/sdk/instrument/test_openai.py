"""Headers on the calls of OpenAI clients, and the user's call left as it was."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.sdk.in_process import HTTPX, Network
from tests.waiting import PATIENCE_S

import autellix
from autellix._instrument import calls, patches
from autellix._instrument import openai as openai_patches
from autellix._programs.running import running_thread
from autellix._sessions import backends as origins

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tests.sdk.conftest import Recording

MESSAGES: Any = [{"role": "user", "content": "x"}]
OPENAI_MODULE: Any = openai._base_client


@pytest.fixture
def backend(sdk: None, make_backend: Callable[..., Recording]) -> Recording:
    """A backend that the client has been told of."""
    backend = make_backend()
    autellix.configure(backend.url)
    return backend


def ask(client: openai.OpenAI, content: str = "x", **options: Any) -> Any:
    return client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": content}], **options
    )


def make_client(backend: Recording, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=backend.url, api_key="key", **{"max_retries": 0, **options})


def test_call_carries_identity(sdk: None, backend: Recording) -> None:
    """A call of a script carries session, program and thread, and says that the program is implicit."""
    with make_client(backend) as client:
        answer = ask(client)
    (call,) = backend.calls
    identity = autellix.current()
    assert answer.choices[0].message.content == "hello"
    assert call["x-autellix-session-id"] == identity.session_id
    assert call["x-autellix-program-id"] == identity.program_id
    assert call["x-autellix-thread-id"] == str(identity.thread_id)
    assert call["x-autellix-flags"] == "implicit"
    assert "x-autellix-program-name" not in call


def test_retries_keep_the_call_id(sdk: None, backend: Recording) -> None:
    """A retried call is one call; the next call is another, whose parent it is."""
    backend.statuses = [500, 503]
    with autellix.program(), make_client(backend, max_retries=2) as client:
        client = client.with_options(timeout=PATIENCE_S)
        ask(client, extra_headers={"Retry-After": "0"})
        ask(client)
    first, second, third, following = (call["x-autellix-call-id"] for call in backend.calls)
    assert first == second == third != following
    parents = [call["x-autellix-parent-ids"] for call in backend.calls]
    assert parents == ["-", "-", "-", first]


def test_expectations_are_sent_and_count_down(sdk: None, backend: Recording) -> None:
    """Calls count down at the client; tokens are told once, and the backend counts them down."""
    with autellix.program("react", expected_calls=2, expected_tokens=90), make_client(backend) as client:
        for _ in range(3):
            ask(client)
    with make_client(backend) as client:
        ask(client)
    told = [
        (call.get("x-autellix-expected-calls"), call.get("x-autellix-expected-tokens"))
        for call in backend.calls
    ]
    assert told == [("2", "90"), ("1", None), (None, None), (None, None)]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_an_expectation_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected_calls is .*; expected a whole number above zero"):
        autellix.program(expected_calls=value)


def test_all_calls_of_a_program_name_its_group(sdk: None, backend: Recording) -> None:
    """A program inside is another one, and in no group of its own accord."""
    with autellix.program("rollout", group=" g17 "), make_client(backend) as client:
        ask(client)
        with autellix.program("judge"):
            ask(client)
        ask(client)
    assert [call.get("x-autellix-group") for call in backend.calls] == ["g17", None, "g17"]


@pytest.mark.parametrize("value", ["", " ", "x" * 257, "\xe9", "a\nb"])
def test_a_group_is_an_id(value: str) -> None:
    with pytest.raises(ValueError, match="group: "):
        autellix.program(group=value)
    with pytest.raises(TypeError, match="got a int"):
        autellix.program(group=17)  # type: ignore[arg-type]


def test_a_priority_is_sent_with_every_call(sdk: None, backend: Recording) -> None:
    """Work in other threads of the program has it too; other programs have none."""
    with autellix.program("report", priority="batch"), make_client(backend) as client:
        ask(client)
        worker = threading.Thread(target=ask, args=(client,))
        worker.start()
        worker.join()
        with autellix.program("question"):
            ask(client)
    assert [call.get("x-autellix-priority") for call in backend.calls] == ["batch", "batch", None]


@pytest.mark.parametrize("value", ["", "urgent", "Batch", 1, True, [], b"batch"])
def test_a_priority_is_one_of_three(value: Any) -> None:
    with pytest.raises(ValueError, match=r"priority is .*; expected one of interactive, default, batch"):
        autellix.program(priority=value)


async def test_async_retries_keep_the_call_id(sdk: None, backend: Recording) -> None:
    backend.statuses = [500]

    async with openai.AsyncOpenAI(base_url=backend.url, api_key="key", max_retries=1) as client:
        await client.chat.completions.create(model="m", messages=MESSAGES)
    assert len(backend.calls) == 2
    assert len({call["x-autellix-call-id"] for call in backend.calls}) == 1


def test_user_headers_win(sdk: None, backend: Recording) -> None:
    with make_client(backend, default_headers={"x-autellix-program-id": "mine"}) as client:
        ask(client, extra_headers={"X-AUTELLIX-THREAD-ID": "7", "X-Autellix-Expected-Return": "90"})
    (call,) = backend.calls
    assert (call["x-autellix-program-id"], call["x-autellix-thread-id"]) == ("mine", "7")
    assert call["x-autellix-expected-return"] == "90"
    assert "x-autellix-call-id" in call


def ours(request: Any) -> list[str]:
    return [name for name in request.headers if name.startswith("x-autellix")]


def test_only_posts_are_calls(sdk: None) -> None:
    """Listing models is no call of a program."""
    network = Network("http://localhost:9/v1")
    list(network.client.models.list())
    assert ours(network.requests[0]) == []


@pytest.mark.parametrize(
    ("base_url", "is_annotated"),
    [
        ("https://api.openai.com/v1", False),
        ("http://8.8.8.8/v1", False),
        ("http://example.com:8000/v1", False),
        ("http://localhost:1/v1", True),
    ],
)
def test_public_hosts_get_no_header(sdk: None, base_url: str, is_annotated: bool) -> None:
    """Nor does a host on this machine that has not answered as a backend."""
    network = Network(base_url)
    ask(network.client)
    assert ours(network.requests[0]) == []
    autellix.configure(base_url="http://localhost:1/v1")
    ask(network.client)
    assert network.seen == [False, is_annotated]


@pytest.fixture
def registry(sdk: None, monkeypatch: pytest.MonkeyPatch) -> origins.BackendRegistry:
    """A registry that has said nothing yet."""
    registry = origins.backends
    monkeypatch.setattr(registry, "_missed", 0)
    monkeypatch.setattr(registry, "_unidentified", 0)
    monkeypatch.setattr(registry, "_has_warned", False)
    monkeypatch.setattr(registry, "has_reached", False)
    return registry


@pytest.mark.parametrize("is_marked", [True, False])
def test_default_address_is_a_backend_from_the_first_call_on(
    registry: origins.BackendRegistry, is_marked: bool
) -> None:
    """Where `autellix serve` listens on this machine; a server without the mark gets ids once at most."""
    network = Network("http://localhost:8000/v1", headers={"X-Autellix-Version": "1"} if is_marked else {})
    for _ in range(3):
        ask(network.client)
    assert network.seen == [True, is_marked, is_marked]
    assert registry.has_reached == is_marked
    other = Network("http://localhost:8000/v1", headers={"X-Autellix-Version": "1"})
    for _ in range(2):
        ask(other.client)
    assert other.seen == [is_marked, True]


def test_any_answer_shows_a_backend(sdk: None) -> None:
    """Also that to a request which is no call, such as for the list of models."""
    network = Network("http://localhost:1/v1", headers={"X-Autellix-Version": "1"})
    network.client.models.list()
    ask(network.client)
    assert network.seen == [False, True]


def test_configured_public_host_is_annotated(sdk: None) -> None:
    autellix.configure(base_url="https://llm.example.com/v1")
    network = Network("https://llm.example.com/v1")
    for client in (network.client, network.client_at("http://localhost:1/v1")):
        ask(client)
    assert network.seen == [True, False]


@pytest.mark.parametrize("is_marked", [True, False])
def test_far_backend_is_annotated_once_its_answer_is_marked(sdk: None, is_marked: bool) -> None:
    """A gateway by its cluster's name needs no configuration; a provider never gets an identity."""
    statuses = iter((429, 200))
    headers = {"X-Autellix-Version": "1"} if is_marked else {}
    network = Network(
        "http://gateway.prod.svc.cluster.local/root/v1",
        answer=lambda _: HTTPX.Response(next(statuses), json={"choices": []}, headers=headers),
    )
    with pytest.raises(openai.RateLimitError):
        ask(network.client)
    ask(network.client)
    assert network.seen == [False, is_marked]


@pytest.mark.parametrize("configured", [None, "http://gateway.prod:8000"])
def test_calls_that_never_reach_a_backend_are_mentioned_once(
    registry: origins.BackendRegistry, caplog: pytest.LogCaptureFixture, configured: str | None
) -> None:
    autellix.configure(configured)
    network = Network("https://llm.example.com/v1")
    for _ in range(3 * origins.MAX_MISSED):
        ask(network.client)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (configured or "AUTELLIX_BASE_URL") in record.getMessage()
    assert not any(network.seen)


def test_backend_beside_the_configured_ones_is_mentioned_once(
    registry: origins.BackendRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    autellix.configure("http://gateway.prod:8000")
    network = Network("http://other.prod:8000/v1", headers={"X-Autellix-Version": "1"})
    for _ in range(2):
        ask(network.client)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "http://other.prod:8000 is an Autellix backend" in record.getMessage()
    assert not any(network.seen)


@pytest.mark.parametrize("configured", [None, "http://gateway.test:1"])
def test_calls_of_a_library_that_the_client_does_not_know_are_mentioned_once(
    registry: origins.BackendRegistry,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    configured: str | None,
) -> None:
    """Its next version has renamed the method that makes requests, and the backend answers without ids."""
    autellix.configure(configured)
    monkeypatch.setattr(registry, "has_reached", True)
    monkeypatch.setattr(openai_patches.in_flight, "annotate", lambda *_: None)
    network = Network("http://gateway.test:1/v1", headers={"X-Autellix-Version": "1"})
    for _ in range(3 * origins.MAX_MISSED):
        ask(network.client)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "calls to gateway.test, an Autellix backend" in record.getMessage()
    assert "status().missing" in record.getMessage()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_names_of_this_machine_are_one(registry: origins.BackendRegistry, host: str) -> None:
    autellix.configure("http://localhost:8000/v1")
    network = Network(f"http://{host}:8000/v1")
    ask(network.client)
    assert network.seen == [True]


TOOL_PATHS = ("/../tokenize", "/files", "/moderations", "/responses/r/cancel", "/messages/count_tokens")


def test_requests_that_make_no_call_leave_the_program_as_it_is(sdk: None) -> None:
    """They say where they belong, and neither enter the DAG nor take what belongs to the next call."""
    autellix.configure("http://localhost:1/v1")
    network = Network("http://localhost:1/v1")
    with autellix.program("agent", expected_calls=2):
        ask(network.client)
        running_thread().record_tool("search", 0.5)
        for path in TOOL_PATHS:
            network.client.post(path, cast_to=object, body={})
        ask(network.client)
    first, *others, last = (request.headers for request in network.requests)
    for other in others:
        assert other["x-autellix-program-id"] == first["x-autellix-program-id"]
        assert other["x-autellix-session-id"] == first["x-autellix-session-id"]
        assert not {"call-id", "parent-ids", "interceptions", "expected-calls"} & {
            name.removeprefix("x-autellix-") for name in other
        }
    assert last["x-autellix-parent-ids"] == first["x-autellix-call-id"]
    assert last["x-autellix-interceptions"] == "search=0.500"
    assert (first["x-autellix-expected-calls"], last["x-autellix-expected-calls"]) == ("2", "1")


def test_other_services_of_a_host_get_nothing(sdk: None) -> None:
    """Each of two backends on one host has its own session, and what lies beside them gets no header."""
    autellix.configure("http://gateway:8000/team-a/v1,http://gateway:8000/team-b/v1")
    network = Network("http://gateway:8000/team-a/v1")
    for path in ("team-a", "team-b", "plain-llm", "team-a/inner", "team"):
        ask(network.client_at(f"http://gateway:8000/{path}/v1"))
    assert network.seen == [True, True, False, False, False]
    names = autellix.status().backends
    assert list(names) == ["http://gateway:8000/team-a", "http://gateway:8000/team-b"]


def test_without_the_redirect_patch_no_request_carries_ids(
    sdk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of httpx that has moved the method would send ids wherever a backend redirects."""
    autellix.uninstrument()
    monkeypatch.delattr(HTTPX.Client.__mro__[1], "_redirect_headers")
    autellix.instrument()
    autellix.configure("http://localhost:1/v1")
    network = Network("http://localhost:1/v1")
    ask(network.client)
    assert network.seen == [False]
    assert any("_redirect_headers" in name for name in autellix.status().missing)
    monkeypatch.undo()
    autellix.uninstrument()
    autellix.instrument()
    ask(network.client)
    assert network.seen == [False, True]


def test_redirected_call_by_absolute_url_is_judged_by_its_target(sdk: None) -> None:
    """A client of a near backend that posts to a public address sends it no identity."""
    autellix.configure(base_url="http://localhost:1/v1")
    network = Network("http://localhost:1/v1")
    network.client.post("https://api.openai.com/v1/other", cast_to=object, body={})
    assert ours(network.requests[0]) == []


def test_errors_are_the_users(sdk: None, backend: Recording) -> None:
    backend.statuses = [400]
    with make_client(backend) as client, pytest.raises(openai.BadRequestError, match="scripted"):
        ask(client)
    assert len(backend.calls) == 1
    assert openai_patches.in_flight._by_key == {}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))])
def test_responses_and_errors_can_be_copied(sdk: None, backend: Recording, duplicate: Any) -> None:
    """Caches, pools and job queues copy and pickle what a client returns and raises."""
    autellix.configure(backend.url)
    backend.statuses = [200, 400]
    with make_client(backend) as client:
        raw = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as raised:
            ask(client)
    assert all("x-autellix-call-id" in call for call in backend.calls)
    for response in (raw.http_response, raised.value.response):
        copied = duplicate(response)
        assert copied.content == response.content
        assert copied.request.headers == response.request.headers
    assert pickle.dumps(raised.value.request)


def test_an_answer_after_a_redirect_is_not_the_backends(sdk: None) -> None:
    """A redirect copies what the request holds of ours; where it leads has not answered the call."""
    autellix.configure("http://gateway.test:1/v1")

    def answer(request: Any) -> Any:
        if request.url.host == "gateway.test":
            return HTTPX.Response(307, headers={"location": "http://elsewhere.test/v1/chat/completions"})
        return HTTPX.Response(401, json={})

    network = Network("http://gateway.test:1/v1", answer=answer)
    with pytest.raises(openai.AuthenticationError) as raised:
        ask(network.client)
    assert network.seen == [True, False]
    assert calls._answered_call(raised.value.response) is None
    assert calls._answered_call(raised.value.response.history[0]) is not None


def test_fault_of_ours_does_not_reach_the_call(
    sdk: None, backend: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(calls, "_make_headers", fail)
    with make_client(backend) as client:
        assert ask(client).choices[0].message.content == "hello"
    assert len(backend.calls) == 1


def test_options_of_the_users_own_key_are_kept(sdk: None, backend: Recording) -> None:
    """A key that the user has set goes through as it is."""
    seen = []
    with make_client(backend) as client:
        original = client._prepare_options

        def prepare(options: Any) -> Any:
            seen.append(options.idempotency_key)
            return original(options)

        client._prepare_options = prepare  # type: ignore[method-assign]
        client.post("/chat/completions", cast_to=object, body={}, options={"idempotency_key": "users"})
    assert seen == ["users"]
    assert "x-autellix-call-id" in backend.calls[0]


def test_wrapper_between_two_patches_changes_nothing(sdk: None, backend: Recording) -> None:
    """Somebody wraps the client's own class, and we are switched off and on: both levels are patched then."""
    original = OPENAI_MODULE.SyncAPIClient.request

    class Wrapped(openai.OpenAI):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            return original(self, *args, **kwargs)

    autellix.configure(backend.url)
    autellix.uninstrument()
    autellix.instrument()
    autellix.configure(backend.url)
    backend.statuses = [500]
    with autellix.program(), Wrapped(base_url=backend.url, api_key="key", max_retries=1) as client:
        ask(client)
        ask(client)
    first, retry, second = (call["x-autellix-call-id"] for call in backend.calls)
    assert first == retry != second
    assert backend.calls[2]["x-autellix-parent-ids"] == first


def test_client_without_the_known_methods_is_left_alone() -> None:
    """A version that has moved its private methods is not instrumented, and nothing is raised."""

    class Module:
        class BaseClient:
            pass

    applied = patches.Patches()
    module: ModuleType = Module  # type: ignore[assignment]
    openai_patches.instrument_client(applied, module)
    assert applied._applied == []
