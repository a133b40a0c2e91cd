"""Users of the web servers of this folder: each reads an answer, or a streamed one."""

import socket
import threading
import time
import urllib.request


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def read(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()


def start(serve, probe="/"):
    """Start a server in a thread, and return its address once it answers."""
    port = free_port()
    threading.Thread(target=serve, args=(port,), daemon=True).start()
    for _ in range(300):
        try:
            read(f"http://127.0.0.1:{port}{probe}")
            break
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.1)
    return f"http://127.0.0.1:{port}"


class Users:
    """Starts the server with the first request of a mode."""

    def __init__(self, serve):
        self._serve = serve
        self._lock = threading.Lock()
        self._address = None

    def ask(self, url, path):
        with self._lock:
            if self._address is None:
                self._address = start(lambda port: self._serve(url, port))
        return read(f"{self._address}/{path}")
