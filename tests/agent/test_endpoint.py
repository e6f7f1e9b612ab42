"""One request to an endpoint: whatever comes back is a reply with the right name, never an exception."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from model_server import Answer, Fail, Hang, ModelServer, Raw, Say, error, events, piece

from agent.proposers.access import Access
from agent.proposers.language_model import endpoint
from agent.proposers.language_model.endpoint import Endpoint
from agent.proposers.language_model.reply import Reply
from knowledge_base.records import Answered

KEY = "sk-very-secret-0123456789"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}


def ask(answer: Answer, **more: Any) -> Reply:
    with ModelServer(lambda _: answer) as server:
        return Endpoint(Access(server.url, KEY, "m")).ask(BODY, **more)


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_comes_whole_with_its_usage(whole: bool) -> None:
    text = "Here it is: " + "x = 1\n" * 1000
    reply = ask(Say(text, usage=(1200, 300, 1000), whole=whole))
    assert (reply.status, reply.text, reply.finish) == (Answered.ANSWERED, text, "stop")
    assert (reply.tokens_in, reply.tokens_out, reply.tokens_cached) == (1200, 300, 1000)


def test_the_request_is_what_the_protocol_wants() -> None:
    with ModelServer(lambda _: Say("yes")) as server:
        Endpoint(Access(server.url, KEY, "m")).ask(BODY)
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body == BODY | {"stream": True, "stream_options": {"include_usage": True}}


def test_an_endpoint_that_counts_no_tokens_is_believed_none() -> None:
    reply = ask(Say("yes", usage=None))
    assert (reply.status, reply.tokens_in, reply.tokens_out) == (Answered.ANSWERED, None, None)


FAILURES = [
    (Say("  \n"), Answered.EMPTY),
    (Say("def f", finish="length"), Answered.TRUNCATED),
    (Say("", refusal="I'd rather not"), Answered.REFUSED),
    (Say("", finish="content_filter"), Answered.REFUSED),
    (Say("half of an answer that", cut=10), Answered.CUT),
    (Say("an answer", cut=0), Answered.CUT),
    (Say("an answer in one piece", whole=True, cut=10), Answered.CUT),
    (Fail(401, error("Incorrect API key provided", "invalid_api_key")), Answered.WRONG_KEY),
    (Fail(403, error("Your country is not served")), Answered.NOT_ALLOWED),
    (Fail(404, error("The model `m` does not exist", "model_not_found")), Answered.UNKNOWN_MODEL),
    (Fail(429, error("Slow down", "rate_limit_exceeded")), Answered.RATE_LIMITED),
    (Fail(429, error("You exceeded your current quota", "insufficient_quota")), Answered.NO_QUOTA),
    (Fail(402, error("Insufficient balance")), Answered.NO_QUOTA),
    (
        Fail(400, error("This model's maximum context length is 8192 tokens", "context_length_exceeded")),
        Answered.TOO_LONG,
    ),
    (Fail(400, error("the request exceeds the available context size")), Answered.TOO_LONG),
    (Fail(413, "too large", kind="text/plain"), Answered.TOO_LONG),
    (Fail(400, error("messages: must alternate")), Answered.BAD_REQUEST),
    (Fail(422, {"detail": "no such field"}), Answered.BAD_REQUEST),
    (Fail(500, error("oops")), Answered.SERVER_ERROR),
    (Fail(503, "<html><h1>Service Unavailable</h1></html>", kind="text/html"), Answered.SERVER_ERROR),
    (Fail(408, ""), Answered.TIMEOUT),
    (Fail(200, "<html>a page</html>", kind="text/html"), Answered.NO_ENDPOINT),
    (Fail(405, "<html>method not allowed</html>", kind="text/html"), Answered.NO_ENDPOINT),
    (Fail(200, "{}"), Answered.NO_ENDPOINT),
    (Fail(200, "not json"), Answered.NO_ENDPOINT),
    (Fail(200, {"choices": []}), Answered.NO_ENDPOINT),
    (Fail(200, 'data: {"choices": 5}\n\n', kind="text/event-stream"), Answered.NO_ENDPOINT),
    (Fail(200, "data: {nonsense\n\n", kind="text/event-stream"), Answered.NO_ENDPOINT),
    (Fail(200, 'data: {"error": {"message": "overloaded"}}\n\n', kind="text/event-stream"), Answered.SERVER_ERROR),
]


@pytest.mark.parametrize(("answer", "status"), FAILURES, ids=lambda value: str(value)[:60])
def test_what_goes_wrong_has_its_name(answer: Answer, status: Answered) -> None:
    reply = ask(answer)
    assert reply.status is status
    if isinstance(answer, Fail):
        assert reply.said


def test_every_status_but_sent_has_been_seen() -> None:
    seen = {status for _, status in FAILURES} | {Answered.ANSWERED, Answered.UNREACHABLE, Answered.TIMEOUT}
    assert seen == set(Answered) - {Answered.SENT}


def test_an_endpoint_says_when_to_come_again() -> None:
    assert ask(Fail(429, error("slow"), {"Retry-After": "7"})).again_s == 7
    assert ask(Fail(429, error("slow"), {"retry-after-ms": "250"})).again_s == 0.25
    assert ask(Fail(429, error("slow"), {"Retry-After": "Fri, 27 Nov 2020 10:00:00 GMT"})).again_s == 0
    for nonsense in ("soon", "-1", "nan", "1e999"):
        assert ask(Fail(429, error("slow"), {"Retry-After": nonsense})).again_s is None


def test_nobody_there_is_unreachable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        reply = Endpoint(Access(f"http://127.0.0.1:{free.getsockname()[1]}/v1", KEY, "m")).ask(BODY)
    assert reply.status is Answered.UNREACHABLE
    assert "refused" in reply.said
    reply = Endpoint(Access("http://no-such-host.invalid/v1", KEY, "m")).ask(BODY)
    assert reply.status is Answered.UNREACHABLE


@pytest.mark.parametrize(("code", "status"), [(301, Answered.NO_ENDPOINT), (308, Answered.ANSWERED)])
def test_an_address_that_has_moved_is_told_or_followed(code: int, status: Answered) -> None:
    with ModelServer(lambda _: Say("yes")) as there:
        moved = f"{there.url}/chat/completions"
        reply = ask(Fail(code, "", {"Location": moved}))
    assert reply.status is status
    assert reply.said == "" or f"from {moved}, where it was sent on to" in reply.said


def test_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SILENCE_S", 1.0)
    start = time.monotonic()
    assert ask(Hang(3.0)).status is Answered.TIMEOUT
    assert ask(Say("x" * 4000, pause=2.0)).status is Answered.TIMEOUT
    assert time.monotonic() - start < 8


def test_an_answer_is_stopped_inside_and_within_its_time() -> None:
    slow = Say("x" * 100_000, pause=0.05)
    start = time.monotonic()
    reply = ask(slow, seconds=0.5)
    assert (reply.status, bool(reply.text)) == (Answered.TIMEOUT, True)
    reply = ask(slow, stop=lambda: time.monotonic() - start > 1.0)
    assert reply.status is Answered.CUT
    assert time.monotonic() - start < 5


def test_an_answer_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LONGEST_ANSWER", 5000)
    reply = ask(Say("x" * 100_000))
    assert reply.status is Answered.TRUNCATED
    assert len(reply.text) < 8000


@pytest.mark.parametrize("name", ["max_tokens", "stream_options"])
@pytest.mark.parametrize("code", [400, 422])
def test_an_option_that_the_endpoint_does_not_know_is_spelled_otherwise_from_then_on(name: str, code: int) -> None:
    refusal = {
        400: error(f"Unsupported parameter: '{name}' is not supported with this model.", param=name),
        422: {"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted"}]},
    }

    def answer(asked: Any) -> Answer:
        return Fail(code, refusal[code]) if name in asked.body else Say("yes")

    with ModelServer(answer) as server:
        model = Endpoint(Access(server.url, KEY, "m"))
        assert [model.ask(BODY).status for _ in range(2)] == [Answered.ANSWERED] * 2
    assert len(server.asked) == 3
    assert name not in server.asked[2].body
    assert (server.asked[2].body.get("max_tokens") or server.asked[2].body["max_completion_tokens"]) == 100


def test_requests_of_one_moment_learn_from_one_refusal() -> None:
    both = Barrier(2)

    def answer(asked: Any) -> Answer:
        if "max_tokens" in asked.body:
            both.wait(10)
            return Fail(400, error("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."))
        return Say("yes")

    with ModelServer(answer) as server, ThreadPoolExecutor() as pool:
        model = Endpoint(Access(server.url, KEY, "m"))
        asking = [pool.submit(model.ask, BODY) for _ in range(2)]
        assert [one.result().status for one in asking] == [Answered.ANSWERED] * 2


TOO_MANY = [  # how OpenAI, Groq, DeepSeek, Anthropic and Google say it, with what they allow
    ("max_tokens is too large: 32000. This model supports at most 16384 completion tokens, you provided 32000.", 16384),
    ("`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than it", 8192),
    ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
    ("max_tokens: 32000 > 8,192, which is the maximum allowed number of output tokens for m-3-20240307", 8192),
    ("Unable to submit request: maxOutputTokens max_tokens must be in range 1 (inclusive) to 8193 (exclusive)", 8192),
]


@pytest.mark.parametrize(("said", "allowed"), TOO_MANY)
def test_an_answer_may_be_as_long_as_the_endpoint_says(said: str, allowed: int) -> None:
    def answer(asked: Any) -> Answer:
        return Fail(400, error(said)) if asked.body["max_tokens"] > allowed else Say("yes")

    with ModelServer(answer) as server:
        model = Endpoint(Access(server.url, KEY, "m"))
        replies = [model.ask(BODY | {"max_tokens": most}) for most in (32_000, 32_000, 300)]
    assert [(reply.status, reply.most) for reply in replies] == [(Answered.ANSWERED, allowed)] * 3
    assert [asked.body["max_tokens"] for asked in server.asked] == [32_000, allowed, allowed, 300]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Your organization must be verified to stream this model. (param: stream)", "stream"),
        ("Unsupported value: 'messages[0].role' does not support 'system' with this model.", "system"),
        ("System role not supported", "system"),
    ],
)
def test_a_stream_or_a_role_that_the_endpoint_does_not_have_is_done_without(said: str, name: str) -> None:
    def answer(asked: Any) -> Answer:
        roles = [message["role"] for message in asked.body["messages"]]
        return Fail(400, error(said)) if asked.body.get(name) or name in roles else Say("yes")

    messages = [{"role": "system", "content": "Write."}, {"role": "user", "content": "hello"}]
    with ModelServer(answer) as server:
        reply = Endpoint(Access(server.url, KEY, "m")).ask(BODY | {"messages": messages})
    assert (reply.status, reply.text, reply.tokens_out) == (Answered.ANSWERED, "yes", 200)
    assert "Write." in str(server.asked[1].body["messages"])


def test_a_prompt_that_a_filter_holds_back_is_one_refusal_and_costs_nothing() -> None:
    said = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."
    reply = ask(Fail(400, error(said, "content_filter")))
    assert (reply.status, reply.tokens_in, reply.tokens_out) == (Answered.REFUSED, 0, 0)


USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "no"}]}
BLANKS = Raw((b" ",) * 100, "application/json", 0.05)
ALIVE = Raw((b": still working\n\n",) * 100, pause=0.05)


@pytest.mark.parametrize("answer", [ALIVE, BLANKS], ids=["comments", "blanks"])
def test_signs_of_life_are_no_answer(answer: Answer) -> None:
    start = time.monotonic()
    assert ask(answer, seconds=0.5).status is Answered.TIMEOUT
    begun = time.monotonic()
    assert ask(answer, stop=lambda: time.monotonic() - begun > 0.5).status is Answered.CUT
    assert time.monotonic() - start < 4


@pytest.mark.parametrize(
    ("document", "status", "text"),
    [
        (events(piece("half of "), {"error": {"message": "overloaded"}}), Answered.CUT, "half of "),
        (events(piece(reasoning_content="so"), {"error": {"message": "overloaded"}}), Answered.CUT, ""),
        (events(piece("half of ")) + b"data: {nonsense\n\n", Answered.CUT, "half of "),
        (events(piece("caf")) + b'data: {"choices": [{"delta": {"content": "\xe9"}}]}\n\n', Answered.CUT, "caf\ufffd"),
        (events(piece("yes")) + b"data: [DONE]\n\n", Answered.ANSWERED, "yes"),
        (events(piece("yes"), piece(finish="stop")), Answered.ANSWERED, "yes"),
        (events(piece("yes", "stop")).replace(b"\n", b"\r\n"), Answered.ANSWERED, "yes"),
        (b"event: message\nid: 1\nretry: 3\n" + events(piece("yes", "stop")), Answered.ANSWERED, "yes"),
        (events(piece([THOUGHT, {"type": "text", "text": "yes"}], "stop")), Answered.ANSWERED, "yes"),
    ],
)
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_a_stream_is_read_as_it_comes(document: bytes, status: Answered, text: str, kind: str) -> None:
    for parts in ((document,), tuple(document[i : i + 7] for i in range(0, len(document), 7))):
        reply = ask(Raw(parts, kind))
        assert (reply.status, reply.text) == (status, text)


@pytest.mark.parametrize("content", ["yes", [THOUGHT, {"type": "text", "text": "yes"}]])
@pytest.mark.parametrize("kind", ["text/plain", "text/event-stream"])
def test_an_answer_in_one_piece_is_known_by_itself(content: Any, kind: str) -> None:
    document = {"choices": [{"message": {"role": "assistant", "content": content}}], "usage": USAGE}
    reply = ask(Raw((json.dumps(document, indent=1).encode(),), kind))
    assert (reply.status, reply.text, reply.tokens_out) == (Answered.ANSWERED, "yes", 7)


@pytest.mark.parametrize("begin", [b'{"choices": [{"message": {"content": "', b'data: {"a": "', b"page\n"])
def test_a_document_without_end_is_ended(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LONGEST_LINE", 100_000)
    reply = ask(Raw((begin, *(b"x" * 10_000 + b"\n" * (begin[-1:] == b"\n"),) * 100)))
    assert reply.status is Answered.TRUNCATED


def test_a_document_of_many_lines_is_soon_read() -> None:
    start = time.monotonic()
    document = b'{"choices": [{"message": {"content": "yes"}}], "x": [\n' + b"1,\n" * 300_000 + b"1]}"
    assert ask(Raw((document,), "application/json")).text == "yes"
    assert time.monotonic() - start < 5


def test_counts_that_cannot_be_are_none() -> None:
    assert ask(Say("yes", usage=(0, 0, 0))).tokens_out is None
    assert ask(Say("yes", usage=(1000, 0, 0))).tokens_out is None
    assert ask(Say("", usage=(1000, 0, 0))).tokens_out == 0


def test_an_endpoint_that_refuses_every_spelling_is_not_asked_for_ever() -> None:
    def answer(asked: Any) -> Answer:
        names = "max_tokens, max_completion_tokens, stream_options"
        return Fail(400, error(f"Unsupported parameters: {names}"))

    with ModelServer(answer) as server:
        assert Endpoint(Access(server.url, KEY, "m")).ask(BODY).status is Answered.BAD_REQUEST
    assert len(server.asked) < 6


def test_the_key_is_in_no_reply_and_what_is_no_text_is_none() -> None:
    reply = ask(Say(f"the key is {KEY} \ud800 \0"))
    assert reply.text == "the key is *** ? "
    reply = ask(Fail(401, error(f"Incorrect API key provided: {KEY}")))
    assert KEY not in reply.said
    assert KEY not in repr(Access("http://x", KEY, "m"))


def test_what_an_address_hides_is_not_shown() -> None:
    hidden = Access("https://user:pass-word-9@host.example:8443/v1?api-version=secret-7", KEY, "m")
    assert hidden.address == "https://host.example:8443/v1"
    assert hidden.scrubbed("pass-word-9 api-version=secret-7") == "*** ***"


def test_a_word_that_stands_for_a_key_stays_in_the_kernel() -> None:
    """Endpoints of one's own take any key: "x", "none", "ollama"."""
    assert Access("http://localhost:8000/v1", "ollama", "m").scrubbed("x = ollama + 1") == "x = ollama + 1"


def test_a_page_is_told_without_its_looks() -> None:
    page = "<html><head><title>t</title></head><style>body{color:red}</style><h1>502 Bad Gateway</h1></html>"
    assert ask(Fail(502, page, kind="text/html")).said == "HTTP 502: 502 Bad Gateway"
