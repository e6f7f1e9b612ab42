"""What a run may spend on a language model: never exceeded, whatever the endpoint does, and told."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from model_runs import calls, go
from model_server import Answer, Asked, Fail, Hang, ModelServer, Say

from agent.proposers.access import OPENAI, Access
from agent.proposers.choice import choose
from agent.proposers.language_model import model_proposer
from agent.proposers.language_model.budget import LEAST_TOKENS, WRAPPING, Allowance, Budget, Spent, charged, worst_case
from agent.proposers.language_model.prices import Price, price_of
from knowledge_base.errors import UserError
from knowledge_base.records import Answered, LlmCall

LOCAL = Access("http://localhost:8000/v1", "none", "my-model")
PRICES = '["my-model"]\ninput = 1.0\noutput = 10.0\ncached = 0.1\n["free"]\ninput = 0\noutput = 0\n'


def price(tmp_path: Path, text: str = PRICES, access: Access = LOCAL) -> Price | None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    return price_of(access, str(file))


def request(prompt: str = "x" * 700, most: int = 1000) -> dict[str, Any]:
    return {"model": "my-model", "messages": [{"role": "user", "content": prompt}], "max_tokens": most}


def call(status: Answered = Answered.ANSWERED, **fields: Any) -> LlmCall:
    body = request() if "request" not in fields else fields.pop("request")
    return LlmCall(
        run="r", task="t", shape={}, number=1, model="my-model", endpoint="e", request=body, status=status, **fields
    )


# ---------------------------------------------------------------------------------------------------- prices


def test_prices_are_of_the_list_or_of_a_file_which_goes_before(tmp_path: Path) -> None:
    listed = price_of(Access(OPENAI, "k", "gpt-4o"))
    assert listed is not None
    assert listed.usd(1_000_000, 0) > 0
    own = price(tmp_path, '["gpt-4o"]\ninput = 1000\noutput = 1\n', Access(OPENAI, "k", "gpt-4o"))
    assert own is not None
    assert own.usd(1_000_000, 0) == 1000
    assert price(tmp_path, PRICES, Access(OPENAI, "k", "gpt-4o")) == Price(Access(OPENAI, "k", "gpt-4o"))
    assert price_of(LOCAL) is None
    mine = price(tmp_path)
    assert mine is not None
    assert mine.usd(1_000_000, 100_000) == pytest.approx(2.0)
    assert mine.usd(1_000_000, 100_000, cached=500_000) == pytest.approx(1.55)
    free = price(tmp_path, access=Access(LOCAL.base_url, "none", "free"))
    assert free is not None
    assert free.usd(1_000_000, 1_000_000) == 0


@pytest.mark.parametrize(
    "text",
    [
        "my-model", '["my-model"]\ninput = 1\n', '["my-model"]\ninput = 1\noutput = "two"\n', "my-model = 3\n",
        '["my-model"]\ninput = 1\noutput = -2\n', '["my-model"]\ninput = 1\noutput = nan\n',
        '["my-model"]\ninput = 1\noutput = 2\nthoughts = 3\n', '["my-model"]\ninput = true\noutput = 2\n',
    ],
)  # fmt: skip
def test_a_file_that_names_no_price_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="--prices"):
        price(tmp_path, text)
    with pytest.raises(UserError, match="--prices"):
        price_of(LOCAL, str(tmp_path / "none.toml"))


def test_dollars_need_a_price_and_budgets_need_a_model(tmp_path: Path) -> None:
    here = {"OPENAI_BASE_URL": LOCAL.base_url}
    with pytest.raises(UserError, match="no price is known for my-model at http://localhost:8000/v1"):
        choose("openai", "my-model", here, usd=1.0)
    price(tmp_path)
    with pytest.raises(UserError, match="no sum"):
        choose("openai", "my-model", here, usd=float("nan"), prices=str(tmp_path / "prices.toml"))
    chosen = choose("openai", "my-model", here, usd=1.0, prices=str(tmp_path / "prices.toml"))
    assert chosen.model is not None
    assert (chosen.model.limits, chosen.model.price is not None) == (Allowance(500_000, 1.0), True)
    for option in ({"usd": 1.0}, {"tokens": 5}, {"prices": "p.toml"}):
        with pytest.raises(UserError, match="asks no language model"):
            choose("synthesizer", None, {}, **option)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- what is charged


def test_what_is_counted_is_charged_as_counted_and_all_else_with_its_worst_case(tmp_path: Path) -> None:
    mine = price(tmp_path)
    worst = worst_case(request(), mine)
    assert worst == Spent(WRAPPING + 700 + 1000, pytest.approx((WRAPPING + 700) * 1e-6 + 1000 * 1e-5))
    counted = {"tokens_in": 200, "tokens_out": 100}
    assert charged([call(**counted)], mine) == Spent(300, pytest.approx(200e-6 + 100e-5))
    assert charged([call(**counted, cost_usd=0.5)], mine).usd == 0.5  # by the price of its day
    assert charged([call(**counted)], None) == Spent(300, 0.0)
    assert charged([call()], mine) == worst  # an endpoint that does not count
    for status in (Answered.SENT, Answered.CUT, Answered.TIMEOUT):  # counts inside an answer are not the last ones
        assert charged([call(status, **counted)], mine) == worst
    for status in Answered:
        if status.turned_away:
            assert charged([call(status)], mine) == Spent()
            assert charged([call(status, text="half an answer")], mine) == worst
    assert {status for status in Answered if status.turned_away}.isdisjoint(
        {status for status in Answered if status.readable or status.broken_off}
    )
    # Letters outside of ASCII may cost a token for each byte.
    assert worst_case(request("ä" * 100, 1), None).tokens == WRAPPING + 201


# ---------------------------------------------------------------------------------------------------- reserving


def test_a_request_that_does_not_fit_is_shortened_and_then_refused() -> None:
    body = request(most=10_000)
    prompt = WRAPPING + 700
    budget = Budget(Allowance(prompt + 20_000), None)
    first = budget.reserve(body)
    assert first is not None
    assert first.request == body
    budget.settle(first, call(request=first.request, tokens_in=500, tokens_out=prompt + 13_000))
    second = budget.reserve(body)
    assert second is not None
    assert second.request["max_tokens"] == 20_000 - 500 - prompt - 13_000
    budget.settle(second, call(request=second.request, tokens_in=500, tokens_out=4000))
    assert budget.reserve(body) is None  # less than LEAST_TOKENS are left
    assert budget.says == f"{500 + prompt + 13_000 + 4500:,} of {prompt + 20_000:,} tokens, no price is known"


def test_dollars_shorten_and_refuse_too(tmp_path: Path) -> None:
    mine = price(tmp_path)
    budget = Budget(Allowance(10**9, 0.05), mine)
    made = budget.reserve(request(most=10_000))  # 1000 tokens of prompt cost $0.001
    assert made is not None
    assert made.request["max_tokens"] == 4900
    budget.settle(made, call(request=made.request, tokens_in=1000, tokens_out=4900))
    assert budget.reserve(request(most=10_000)) is None
    assert budget.says.endswith("$0.0500 of $0.05")


def test_a_call_waits_for_those_under_way_before_it_is_shortened() -> None:
    body = request(most=10_000)
    budget = Budget(Allowance(16_000), None)
    first = budget.reserve(body)
    assert first is not None
    got: list[Any] = []
    other = threading.Thread(target=lambda: got.append(budget.reserve(body)))
    other.start()
    time.sleep(0.2)
    assert got == []
    budget.settle(first, call(request=first.request, tokens_in=100, tokens_out=100))
    other.join(5)
    assert got[0].request["max_tokens"] == 10_000
    assert budget.reserve(body, lambda: False) is None  # told to stop, it waits no longer


def test_many_threads_never_reserve_more_than_there_is() -> None:
    limits = Allowance(100_000)
    budget, lock, held, most = Budget(limits, None), threading.Lock(), [0], [0]

    def work(number: int) -> None:
        for turn in range(20):
            made = budget.reserve(request(most=5000 + number))
            if made is None:
                return
            with lock:
                held[0] += made.held.tokens
                most[0] = max(most[0], held[0])
            time.sleep(0.001)
            used = 300 if turn % 3 else made.held.tokens - 600
            with lock:
                held[0] += 600 + used - made.held.tokens
            budget.settle(made, call(request=made.request, tokens_in=600, tokens_out=used))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert limits.tokens - LEAST_TOKENS - 2000 < most[0] <= limits.tokens


def test_calls_of_a_run_that_goes_on_are_spent_already() -> None:
    before = [call(tokens_in=1000, tokens_out=5000), call(Answered.SENT)]
    budget = Budget(Allowance(12_000), None, before)
    made = budget.reserve(request(most=10_000))
    assert made is not None
    assert made.request["max_tokens"] == 12_000 - 6000 - 2 * (WRAPPING + 700) - 1000


# ---------------------------------------------------------------------------------------------------- runs


def spending(asked: Asked) -> Answer:
    """An endpoint that takes all it may: a token for every byte, the longest answer; sometimes it cuts or fails."""
    if asked.number % 4 == 2:
        return Say("half", cut=4)
    if asked.number % 4 == 3:
        return Fail(500, "busy")
    prompt = sum(len(message["content"].encode()) for message in asked.body["messages"])
    return Say("```python\ndef launch", finish="length", usage=(prompt, asked.body["max_tokens"], 0))


@pytest.mark.parametrize("answer", [spending, lambda asked: Hang(0.2)], ids=["spending", "silent"])
def test_a_run_stays_within_its_budget(tmp_path: Path, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_proposer, "FIRST_WAIT_S", 0.01)
    with ModelServer(answer) as server:
        summary = go(tmp_path, server.url, rounds=20, tokens=150_000)
    assert (summary.status, summary.asked is not None) == ("done", True)
    assert summary.asked is not None
    assert 75_000 < summary.asked.charged_tokens <= 150_000
    assert len(server.asked) >= 2
    asked = sum(
        a.body["max_tokens"] + sum(len(m["content"].encode()) for m in a.body["messages"])
        for a in server.asked if answer is not spending or a.number % 4 != 3
    )  # fmt: skip
    assert asked <= 150_000  # what was sent, counted here
    assert any("of 150,000 tokens" in note for note in summary.notes)
    assert len(calls(tmp_path)) == len(server.asked)
    document = json.loads(json.dumps(summary.document()["asked"]))
    assert (document["budget_tokens"], document["budget_usd"]) == (150_000, None)


def test_a_budget_of_nothing_asks_nothing(tmp_path: Path) -> None:
    with ModelServer(lambda _: Say("no")) as server:
        summary = go(tmp_path, server.url, tokens=0)
    assert (summary.status, server.asked, summary.asked) == ("done", [], None)
