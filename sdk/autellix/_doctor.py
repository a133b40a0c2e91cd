"""`autellix doctor`: checks whether this environment's calls reach a backend; if not, names what to set."""

from __future__ import annotations

import os
import sys
from importlib import metadata, util

from autellix import _environment
from autellix._ids import ids
from autellix._instrument.switch import INSTRUMENTORS
from autellix._sessions.backends import Backend, key_headers
from autellix._sessions.exchange import close_connections, exchange
from autellix._sessions.session import Registration
from autellix_wire.paths import SESSIONS_PATH
from autellix_wire.sessions import InvalidBodyError, SessionStart, SessionStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from autellix._environment import Origin

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "OPENAI_API_KEY"
OK, FAILED = 0, 1


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
        try:
            problem = _problem_at(origin, root, api_key)
        finally:
            close_connections()
        lines.append(f"backend {url.strip()}: {problem or 'answers, and starts sessions'}")
        code = FAILED if problem else code
    return lines + _libraries(), code


def _is_disabled() -> bool:
    return _environment.is_set(_environment.DISABLED_VARIABLE)


def _problem_at(origin: Origin, root: str, api_key: str | None) -> str | None:
    account = Backend(origin, root, is_configured=True).account(key_headers(api_key))
    registration = Registration(account, ids.make("session"))
    start = SessionStart(session_id=registration.session_id)
    answer = exchange(account, "POST", SESSIONS_PATH, start.to_bytes())
    if answer is None:
        return "nobody answers; is the gateway running, and is this its address?"
    if answer[0] in (401, 403):
        return f"refuses the key (status {answer[0]}); set {KEY_VARIABLE} or --api-key"
    try:
        registration.token = SessionStarted.from_bytes(answer[1]).token
    except InvalidBodyError:
        return f"is not an Autellix gateway (status {answer[0]}); its calls are in no program"
    exchange(account, "DELETE", registration.path(), None, proof=registration.proof())
    return None


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
