"""`autellix engines`: list, add, drain, undrain and remove the engines of a gateway."""

from __future__ import annotations

import argparse
import time
from typing import Any
from urllib.parse import quote

from autellix_backend.cli.notes import note
from autellix_backend.cli.program_table import add_wide_option, engine_table
from autellix_backend.cli.remote import RemoteGateway, add_remote_options, print_json
from autellix_backend.cli.terminal import Terminal, printable

ENGINES = "/engines"
LOOK_PERIOD_S = 0.5
KINDS = ("auto", "vllm", "sglang", "openai")
"""The kinds of `settings.ENGINE_KINDS`, whose import needs more than the standard library."""
ACTIONS = ("list", "add", "drain", "undrain", "remove")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the gateway, the action and its engine."""
    add_remote_options(parser)
    parser.add_argument("action", choices=ACTIONS, nargs="?", default="list", help="default: %(default)s")
    parser.add_argument(
        "engine",
        nargs="?",
        metavar="URL|NAME",
        help="address of a running server to add; name of the engine to drain, undrain or remove",
    )
    parser.add_argument("--name", help="add: name of the engine, by default remote-0, remote-1, …")
    parser.add_argument("--kind", choices=KINDS, help="add: kind of the server")
    parser.add_argument("--report-port", type=int, help="add: report port of an engine with our scheduler")
    parser.add_argument("--wait", action="store_true", help="drain: return once its last call has ended")
    parser.add_argument("--no-wait", action="store_true", help="remove: return before the engine has left")
    add_wide_option(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """List the engines, or change one and print its state."""
    if (args.engine is None) != (args.action == "list"):
        expected = "no engine" if args.action == "list" else "the engine's address or name"
        args.usage_error(f"{args.action}: expected {expected}")
    gateway = RemoteGateway.from_args(args)
    if args.action == "list":
        return _list(gateway, is_json=args.json, is_wide=args.wide)
    answer = _change(gateway, args)
    if args.action == "remove" and not args.no_wait:
        _wait_for_calls(gateway, args.engine, answer["open_calls"])
        answer["state"] = "left"
    if args.action == "drain" and args.wait:
        began_s = time.monotonic()
        answer = _wait_for_calls(gateway, args.engine, answer["open_calls"]) or answer
        answer["waited_s"] = round(time.monotonic() - began_s, 1)
    if args.json:
        print_json(answer)
    else:
        waited = f", its last call ended after {answer['waited_s']} s" if "waited_s" in answer else ""
        print(f"{answer['name']} ({answer['base_url']}): {answer['state']}{waited}")
        if args.action == "add":
            print(answer["scheduling"])
    return 0


def _list(gateway: RemoteGateway, *, is_json: bool, is_wide: bool) -> int:
    answer = gateway.get(ENGINES)
    if is_json:
        print_json(answer)
    else:
        print(*engine_table(Terminal.of_output(), answer["engines"], is_wide=is_wide), sep="\n")
        for engine in answer["engines"]:
            if engine["failure"] is not None:
                print(printable(f"{engine['name']}: {engine['failure']}"))
            if engine["reporting"] != "local" or not engine["sends_reports"]:
                print(f"{engine['name']}: {engine['scheduling']}")
    return 0


def _change(gateway: RemoteGateway, args: argparse.Namespace) -> dict[str, Any]:
    if args.action == "add":
        named = {"name": args.name, "kind": args.kind, "report_port": args.report_port}
        body = {"url": args.engine, **{key: value for key, value in named.items() if value is not None}}
        return gateway.ask("POST", ENGINES, body)
    path = f"{ENGINES}/{quote(args.engine, safe='')}"
    if args.action == "remove":
        return gateway.ask("DELETE", path)
    return gateway.ask("POST", f"{path}/{args.action}")


def _wait_for_calls(gateway: RemoteGateway, name: str, open_calls: int) -> dict[str, Any] | None:
    """Wait until a drained engine has no call of this gateway, or has left; return it, or None."""
    said = 0
    while open_calls:
        if open_calls != said:
            note(f"{name}: its open calls: {open_calls}")
        said = open_calls
        time.sleep(LOOK_PERIOD_S)
        engine = _find(gateway, name)
        open_calls = engine["open_calls"] if engine else 0
    while (engine := _find(gateway, name)) and engine["state"] == "leaving":
        time.sleep(LOOK_PERIOD_S)
    return engine


def _find(gateway: RemoteGateway, name: str) -> dict[str, Any] | None:
    engines: list[dict[str, Any]] = gateway.get(ENGINES)["engines"]
    return next((engine for engine in engines if engine["name"] == name), None)
