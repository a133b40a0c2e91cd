"""A stand-in for a vLLM server: answers /health, with faults by its extra arguments."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/die":
            sys.stderr.write("(Server pid=1) WARNING 01-01 00:00:00 [a.py:1] this may lead to OSError: 24\n")
            sys.stderr.write("RuntimeError: told to die\n")
            sys.stderr.flush()
            os._exit(7)
        self.send_response(200)
        self.end_headers()
        if self.path == "/tell":
            self.wfile.write(self.server.told().encode())  # type: ignore[attr-defined]


class Server(HTTPServer):
    def __init__(self, address: tuple[str, int], config: str) -> None:
        super().__init__(address, Handler)
        self._config = config

    def told(self) -> str:
        """Return where the scheduler is to report, and the secret for it."""
        address = json.loads(self._config)["autellix"]["report_address"]
        return f"{address} {os.environ['AUTELLIX_ENGINE_REPORT_SECRET']}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    parser.add_argument("--additional-config", default="{}")
    parser.add_argument("--fail", default="")
    parser.add_argument("--busy-once", type=Path)
    parser.add_argument("--pid-file", type=Path)
    options, _ = parser.parse_known_args()
    if options.pid_file:
        # A grandchild, as vLLM's engine core is.
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        options.pid_file.write_text(f"{os.getpid()} {child.pid}")
    if options.busy_once and not options.busy_once.exists():
        options.busy_once.touch()
        sys.exit("OSError: [Errno 98] Address already in use")
    if options.fail == "start":
        sys.stderr.write(
            "ValueError: the model is too large\nRuntimeError: Engine core initialization failed.\n"
        )
        sys.exit(3)
    if options.fail == "late":
        time.sleep(600)
    if options.fail == "stop":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Server((options.host, options.port), options.additional_config).serve_forever()


if __name__ == "__main__":
    main()
