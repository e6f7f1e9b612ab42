"""A real HTTP server on this machine that speaks OpenAI's protocol for chats; what it answers is written by a test.

with ModelServer(lambda asked: Say("…")) as server:
    … OPENAI_BASE_URL=server.url …
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """One request.  ``number``: of all that came, from 1."""

    number: int
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """All that was said, on one page."""
        return "\n".join(message["content"] for message in self.body["messages"])

    @property
    def task(self) -> str:
        """The name of the task that is asked for."""
        found = re.search(r"^# The task\n\n(\w+)\(", self.prompt, re.MULTILINE)
        return found[1] if found else ""


@dataclass(frozen=True)
class Say:
    """An answer.  usage: tokens of prompt, answer and cache; None sends none.  ``whole``: in one piece, not streamed.

    cut: the connection ends after so many characters.  pause: seconds between two parts.
    """

    text: str
    finish: str = "stop"
    usage: tuple[int, int, int] | None = (1000, 200, 0)
    whole: bool = False
    cut: int | None = None
    pause: float = 0.0
    refusal: str = ""


@dataclass(frozen=True)
class Fail:
    """An HTTP error, or any other page."""

    status: int
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "application/json"


@dataclass(frozen=True)
class Hang:
    """Nothing comes, for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Raw:
    """A page that comes in parts as they are, with a pause after each."""

    parts: tuple[bytes, ...]
    kind: str = "text/event-stream"
    pause: float = 0.0


Answer = Say | Fail | Hang | Raw


def events(*documents: Mapping[str, Any]) -> bytes:
    """Server-sent events, as answers are streamed."""
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)


def piece(content: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A part of a streamed answer."""
    return {"choices": [{"index": 0, "delta": {"content": content, **more}, "finish_reason": finish}]}


def error(message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error's body as OpenAI sends it."""
    return {"error": {"message": message, "type": "invalid_request_error", "code": code, "param": param}}


class ModelServer:
    """A context manager.  ``asked``: every request so far.  most: as many were under way at once."""

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        self.asked: list[Asked] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer._lock:
                    asked = Asked(
                        len(outer.asked) + 1,
                        self.path,
                        {name.lower(): value for name, value in self.headers.items()},
                        body,
                    )
                    outer.asked.append(asked)
                    outer._now += 1
                    outer.most = max(outer.most, outer._now)
                try:
                    with suppress(BrokenPipeError, ConnectionResetError):
                        outer._send(self, asked, answer(asked))
                finally:
                    with outer._lock:
                        outer._now -= 1

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _send(self, to: BaseHTTPRequestHandler, asked: Asked, answer: Answer) -> None:
        if isinstance(answer, Hang):
            time.sleep(answer.seconds)
            to.close_connection = True
        elif isinstance(answer, Raw):
            to.send_response(200)
            to.send_header("content-type", answer.kind)
            to.send_header("connection", "close")
            to.end_headers()
            to.close_connection = True
            for part in answer.parts:
                to.wfile.write(part)
                to.wfile.flush()
                time.sleep(answer.pause)
        elif isinstance(answer, Fail):
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            _page(to, answer.status, answer.kind, text, answer.headers)
        elif answer.whole or not asked.body.get("stream"):
            message = {"role": "assistant", "content": answer.text, "refusal": answer.refusal or None}
            choice = {"index": 0, "message": message, "finish_reason": answer.finish}
            document = _document(asked, "chat.completion", [choice]) | {"usage": _usage(answer)}
            _page(to, 200, "application/json", json.dumps(document), {}, answer.cut)
        else:
            _stream(to, asked, answer)


def _document(asked: Asked, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"call-{asked.number}",
        "object": kind,
        "created": 0,
        "model": asked.body["model"],
        "choices": choices,
    }


def _usage(answer: Say) -> dict[str, Any] | None:
    if answer.usage is None:
        return None
    given, made, cached = answer.usage
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made} | details


def _page(
    to: BaseHTTPRequestHandler, status: int, kind: str, text: str, headers: Mapping[str, str], cut: int | None = None
) -> None:
    data = text.encode("utf-8", "surrogatepass")
    to.send_response(status)
    to.send_header("content-type", kind)
    to.send_header("content-length", str(len(data)))
    for name, value in headers.items():
        to.send_header(name, value)
    to.end_headers()
    to.wfile.write(data[:cut])
    to.close_connection = to.close_connection or cut is not None


def _stream(to: BaseHTTPRequestHandler, asked: Asked, answer: Say) -> None:
    to.send_response(200)
    to.send_header("content-type", "text/event-stream")
    to.send_header("connection", "close")
    to.end_headers()
    to.close_connection = True

    def event(choices: list[dict[str, Any]], **more: Any) -> None:
        document = _document(asked, "chat.completion.chunk", choices) | more
        to.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        to.wfile.flush()

    event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    text = answer.text if answer.cut is None else answer.text[: answer.cut]
    for start in range(0, len(text), 500):
        if answer.pause:
            time.sleep(answer.pause)
        event([{"index": 0, "delta": {"content": text[start : start + 500]}, "finish_reason": None}])
    if answer.cut is not None:
        return
    if answer.refusal:
        event([{"index": 0, "delta": {"refusal": answer.refusal}, "finish_reason": None}])
    event([{"index": 0, "delta": {}, "finish_reason": answer.finish}])
    if answer.usage is not None and (asked.body.get("stream_options") or {}).get("include_usage"):
        event([], usage=_usage(answer))
    to.wfile.write(b"data: [DONE]\n\n")
