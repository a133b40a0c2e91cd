"""`autellix doctor`: checks whether this environment's calls reach a backend; if not, names what to set."""

from __future__ import annotations

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

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "OPENAI_API_KEY"
OK, FAILED = 0, 1
LIMIT_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("base_url", nargs="?", help="a backend to ask instead of those of AUTELLIX_BASE_URL")
    parser.add_argument("--api-key", help=f"the key to ask with; default: {KEY_VARIABLE}")


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 0 if every backend answers as Autellix, else 1."""
    lines, code = diagnose(args.base_url, args.api_key or os.environ.get(KEY_VARIABLE))
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
    if status in (401, 403):
        return f"refuses the key (status {status}); set {KEY_VARIABLE} or --api-key"
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


def _libraries() -> list[str]:
    lines = []
    for package in sorted({name.partition(".")[0] for name in INSTRUMENTORS} - set(sys.stdlib_module_names)):
        if util.find_spec(package) is None:
            continue
        try:
            version = metadata.version(package.replace("_", "-"))
        except metadata.PackageNotFoundError:
            version = "of unknown version"
        lines.append(f"library: {package} {version} will be patched")
    return lines
