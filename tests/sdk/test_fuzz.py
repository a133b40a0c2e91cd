"""Random use of everything public: we raise only what is documented, and every call goes through."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.sdk.in_process import Network

import autellix
from autellix import web
from autellix._programs.registry import programs
from autellix._scopes.scopes import end_program
from autellix_wire.ids import is_header_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 20
ROUNDS = 150
BASE_URL = "http://127.0.0.1:1/v1"
"""Nobody listens there, and no name is looked up: programs' ends are refused at once."""
WORDS = ["", " ", "a", "b ", "\t", "\n", "\r\nX-Other: 1", "ü", "🜂", "\ud800", "\x00", "%", "%C3", "x" * 255]


class Unprintable:
    """An object that fails wherever it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("users")

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("users")

    __hash__ = None  # type: ignore[assignment]


THINGS = [None, 0, 7, -1, 1.5, True, b"x", [], {}, object(), Unprintable(), len, str, int]


class Fuzz:
    """A source of inputs, and a client whose transport is in the process."""

    def __init__(self) -> None:
        self.random = random.Random(SEED)
        network = Network(BASE_URL)
        self.requests, self.client = network.requests, network.client

    def text(self) -> str:
        return "".join(self.random.choices(WORDS, k=self.random.randrange(4)))

    def anything(self) -> Any:
        return self.text() if self.random.random() < 0.6 else self.random.choice(THINGS)

    def ask(self) -> None:
        """Make a call: it goes through, and what it carries is what a header can carry."""
        count = len(self.requests)
        answer = self.client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert answer.id == "1"
        assert len(self.requests) == count + 1
        ours = {
            name: value
            for name, value in self.requests[-1].headers.items()
            if name.lower().startswith("x-autellix")
        }
        assert "x-autellix-call-id" in ours
        assert all(is_header_value(value) for value in ours.values()), ours


@pytest.fixture
def fuzz(sdk: None) -> Iterator[Fuzz]:
    autellix.configure(BASE_URL)
    fuzz = Fuzz()
    yield fuzz
    fuzz.client.close()


def documented(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of one of our functions, or None where it refuses its arguments."""
    try:
        return call(*args, **kwargs)
    except (TypeError, ValueError):
        return None


def test_scopes_take_anything(fuzz: Fuzz) -> None:
    before = dict(programs._open)
    for _ in range(ROUNDS):
        scopes = [
            documented(
                autellix.program,
                fuzz.anything(),
                id=fuzz.anything() or None,
                expected_calls=fuzz.anything(),
            ),
            documented(autellix.program, fuzz.text(), continues=fuzz.anything()),
            documented(autellix.session, id=fuzz.anything(), continues=fuzz.anything()),
            documented(autellix.thread, fuzz.anything()),
        ]
        entered = [scope for scope in scopes if scope is not None]
        for scope in entered:
            scope.__enter__()
        fuzz.ask()
        fuzz.random.shuffle(entered)
        for scope in entered:
            scope.__exit__(None, None, None)
    fuzz.ask()
    assert programs._open == before


def test_functions_take_anything(fuzz: Fuzz) -> None:
    for _ in range(ROUNDS):
        thing = fuzz.anything()
        documented(end_program, thing)
        wrapped = documented(autellix.propagate, fuzz.random.choice([thing, fuzz.ask]))
        if wrapped is not None and wrapped is not thing:
            documented(wrapped)
        decorated = documented(autellix.program("a"), fuzz.random.choice([thing, fuzz.ask]))
        if decorated is not None:
            documented(decorated)
        fuzz.ask()


def test_requests_of_strangers(fuzz: Fuzz) -> None:
    """Whatever the method and path of a request, its calls go through, and so does its answer."""

    def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        fuzz.ask()
        return [b"answer"]

    async def asgi(scope: dict[str, Any], receive: Any, send: Any) -> None:
        fuzz.ask()

    for _ in range(ROUNDS):
        path = "/" + "a" * fuzz.random.choice([0, 240, 249, 250, 251, 260]) + fuzz.text()
        environ = {"REQUEST_METHOD": fuzz.text(), "PATH_INFO": path}
        assert list(web.WsgiMiddleware(wsgi)(environ, print)) == [b"answer"]
        scope = {"type": "http", "method": fuzz.anything(), "path": fuzz.random.choice([path, None, 7])}
        asyncio.run(web.AsgiMiddleware(asgi)(scope, None, None))


def test_addresses_are_refused_or_taken(fuzz: Fuzz) -> None:
    for _ in range(ROUNDS):
        documented(autellix.configure, fuzz.random.choice(["http://", "https://[", "x:", ""]) + fuzz.text())
        documented(autellix.configure, fuzz.anything())
    autellix.configure(BASE_URL)
    fuzz.ask()


@pytest.mark.parametrize("variable", ["AUTELLIX_BASE_URL", "AUTELLIX_PROGRAM_NAME", "AUTELLIX_PROGRAM_ID"])
def test_environment_may_hold_anything(variable: str, run_script: Callable[..., str]) -> None:
    """The import never fails, and what it has read can be sent."""
    script = (
        "import io, os, sys\n"
        "sys.stderr = io.StringIO()\n"
        "for value in [b'', b' ', b'\\xff\\xfe', b'a' * 255 + b' b', b'a:80', b'http://[', b'a\\tb']:\n"
        f"    os.environb[{variable!r}.encode()] = value\n"
        "    for name in [name for name in sys.modules if name.startswith('autellix')]:\n"
        "        del sys.modules[name]\n"
        "    import autellix\n"
        "    identity = autellix.current()\n"
        "    assert identity.name is None or identity.name.strip() == identity.name != '', identity.name\n"
        "    assert identity.program_id.isascii()\n"
        "    autellix.uninstrument()\n"
        "assert 'Traceback' not in sys.stderr.getvalue(), sys.stderr.getvalue()\n"
    )
    run_script(script)
