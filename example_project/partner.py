"""A partner with an HTTP endpoint that is not always well, in a thread of the demo."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Partner(ThreadingHTTPServer):
    """Fails every third call or so, and refuses one order for good."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, refused_order: str) -> None:
        super().__init__(("127.0.0.1", 0), _Endpoint)
        self.refused_order = refused_order
        self.random = random.Random(7)
        self.answers: Counter[int] = Counter()
        self.told: Counter[str] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/paid"

    def answer(self, order: str) -> int:
        if order == self.refused_order:
            return 422
        if self.random.random() < 0.3:
            return 503
        self.told[order] += 1
        return 204


class _Endpoint(BaseHTTPRequestHandler):
    server: Partner

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.answer(body["order"])
        self.server.answers[status] += 1
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
