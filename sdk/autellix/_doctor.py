"""`autellix doctor`: checks whether this environment's calls reach a backend; if not, names what to set."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata, util
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from autellix import _environment
from autellix._ids import ids
from autellix._instrument.switch import INSTRUMENTORS
from autellix._sessions.backends import Backend
from autellix_wire.headers import SESSION_ID, SESSION_PROOF
from autellix_wire.paths import SESSIONS_PATH
from autellix_wire.sessions import InvalidBodyError, SessionStart, SessionStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLES = ("AUTELLIX_API_KEY", "OPENAI_API_KEY")
"""The key of commands that ask a gateway, and the one that agents send; the first that is set counts."""
OK, FAILED = 0, 1
LIMIT_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("base_url", nargs="?", help="a backend to ask instead of those of AUTELLIX_BASE_URL")
    parser.add_argument("--api-key", help=f"the key to ask with; default: {_or(KEY_VARIABLES)}")


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 0 if every backend answers as Autellix, else 1."""
    keys = [args.api_key, *map(os.environ.get, KEY_VARIABLES)]
    lines, code = diagnose(args.base_url, next(filter(None, keys), None))
    sys.stdout.write("\n".join([*lines, ""]))
    return code


def diagnose(base_url: str | None, api_key: str | None) -> tuple[list[str], int]:
    """Return lines of findings, and the exit code."""
    lines = ["client: off, by AUTELLIX_DISABLED" if _is_disabled() else "client: on after `import autellix`"]
    given = base_url or os.environ.get(_environment.BASE_URL_VARIABLE) or DEFAULT_URL
    code = FAILED if _is_disabled() else OK
    for url in filter(str.strip, given.split(",")):
        try:
            origin, root = _environment.parse_base_url(url)
        except ValueError as error:
            lines.append(f"backend: {error}")
            code = FAILED
            continue
        problem = _problem_at(Backend(origin, root, is_configured=True), api_key)
        lines.append(f"backend {url.strip()}: {problem or 'answers, and starts sessions'}")
        code = FAILED if problem else code
    return lines + _libraries(), code


def _is_disabled() -> bool:
    return _environment.is_set(_environment.DISABLED_VARIABLE)


def _problem_at(backend: Backend, api_key: str | None) -> str | None:
    session_id = ids.make("session")
    start = SessionStart(session_id=session_id, proof=backend.proof)
    headers = {SESSION_ID: session_id, SESSION_PROOF: backend.proof, "Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        status, body = _answer(Request(backend.url + SESSIONS_PATH, start.to_bytes(), headers))
    except OSError as error:
        return f"nobody answers ({error}); is the gateway running, and is this its address?"
    if status == 403:
        return f"refuses the request (status 403){_reason(body)}"
    if status == 503:
        return f"is not ready (status 503){_reason(body)}"
    if status == 401:
        problem = "wants a key" if api_key is None else "refuses the key"
        return f"{problem} (status {status}); set {_or((*KEY_VARIABLES, '--api-key'))}"
    try:
        SessionStarted.from_bytes(body)
    except InvalidBodyError:
        return f"is not an Autellix gateway (status {status}); its calls are in no program"
    _answer(Request(f"{backend.url}{SESSIONS_PATH}/{session_id}", headers=headers, method="DELETE"))
    return None


def _answer(request: Request) -> tuple[int, bytes]:
    try:
        with urlopen(request, timeout=LIMIT_S) as response:
            return response.status, response.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def _reason(body: bytes) -> str:
    """Return the message of an error as the end of a sentence, nothing if the body has none."""
    try:
        return f": {json.loads(body)['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return ""


def _libraries() -> list[str]:
    """Return one line of the installed libraries that the client patches; none without any."""
    names = sorted({name.partition(".")[0] for name in INSTRUMENTORS} - set(sys.stdlib_module_names))
    found = [f"{name}{_version(name)}" for name in names if util.find_spec(name) is not None]
    return [f"patched when imported: {', '.join(found)}"] if found else []


def _version(package: str) -> str:
    try:
        return " " + metadata.version(package.replace("_", "-"))
    except metadata.PackageNotFoundError:
        # A module that comes with a package of another name.
        return ""


def _or(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"
