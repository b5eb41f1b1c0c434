"""``/healthz`` and ``/readyz`` for whoever restarts and routes: an HTTP server of a few lines, for probes only."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

logger = logging.getLogger("delayed_queue.workers")

# A probe that sends nothing must not keep the supervisor from its children.
PATIENCE = 1.0

Report = Callable[[], tuple[bool, bool, dict[str, Any]]]  # alive? ready? and the details


class HealthServer(HTTPServer):
    """``report`` is asked at each probe. Alive: processes show life. Ready: all are connected and take messages."""

    def __init__(self, port: int, report: Report) -> None:
        self.report = report
        super().__init__(("0.0.0.0", port), _Probe)  # noqa: S104  # the kubelet comes from outside
        self.timeout = 0.0

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("A probe broke off", exc_info=True)

    def serve_in_thread(self) -> None:
        threading.Thread(target=self.serve_forever, name="health", daemon=True).start()


class _Probe(BaseHTTPRequestHandler):
    server: HealthServer
    timeout = PATIENCE

    def do_GET(self) -> None:
        is_alive, is_ready, details = self.server.report()
        answers = {"/healthz": is_alive, "/readyz": is_ready}
        path = self.path.partition("?")[0].rstrip("/")
        if path not in answers:
            self._answer(404, {"error": "There are /healthz and /readyz."})
        else:
            self._answer(200 if answers[path] else 503, {"ok": answers[path], **details})

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)
