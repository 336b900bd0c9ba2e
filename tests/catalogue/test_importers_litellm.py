"""LiteLLM's price map becomes hosted prices per million tokens."""

import io
import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from service.catalogue.importers.litellm import family_of, read_litellm
from service.catalogue.importers.outcome import Quarantined, Skipped, WrongFormat
from service.catalogue.records.price import HostedPrice

FILE = Path(__file__).parent.parent / "data" / "prices" / "litellm.json"
DAY = date(2026, 11, 1)


@pytest.fixture(scope="module")
def outcomes() -> list[HostedPrice | Skipped | Quarantined]:
    with FILE.open("rb") as file:
        return list(read_litellm(file, DAY, "LiteLLM test"))


@pytest.fixture(scope="module")
def prices(outcomes: list[HostedPrice | Skipped | Quarantined]) -> dict[str, HostedPrice]:
    return {outcome.model: outcome for outcome in outcomes if isinstance(outcome, HostedPrice)}


def test_price_per_token_becomes_price_per_million(prices: dict[str, HostedPrice]) -> None:
    """2.3e-07 x 1,000,000 = 0.23 and 4e-07 x 1,000,000 = 0.4, exactly."""
    price = prices["meta-llama/Llama-3.3-70B-Instruct"]
    assert (price.input_per_million, price.output_per_million) == (Decimal("0.23"), Decimal("0.4"))
    assert (price.provider, price.family, price.context_tokens) == ("deepinfra", "llama", 131072)
    assert price.source == "LiteLLM test <- https://deepinfra.com/pricing"
    assert price.observed_on == DAY


def test_cached_prompt_tokens_have_their_price(prices: dict[str, HostedPrice]) -> None:
    """7e-08 a token is 0.07 a million; where none is stated none is assumed."""
    assert prices["deepseek-chat"].cached_input_per_million == Decimal("0.07")
    assert prices["glm-4.6"].cached_input_per_million is None


def test_regions_and_ends_and_steps_are_kept(prices: dict[str, HostedPrice]) -> None:
    """A regional id stays distinct, a deprecated model keeps its date, a dearer long prompt is noted."""
    assert "ap-northeast-1/meta.llama3-70b-instruct-v1:0" in prices
    assert prices["databricks-llama-2-70b-chat"].deprecated_on == date(2026, 1, 15)
    assert prices["databricks-llama-2-70b-chat"].input_per_million == Decimal("0.50001")
    assert prices["glm-4.6"].note == "dearer above 200k tokens"


def test_every_other_entry_is_accounted_for(outcomes: list[HostedPrice | Skipped | Quarantined]) -> None:
    """Documentation, tiers, size classes, aliases, other media, free, unpriced, contradictory, malformed."""
    assert len(outcomes) == 16
    assert [(o.row, o.reason) for o in outcomes if isinstance(o, Skipped)] == [
        (1, "documentation"),
        (7, "tiered"),
        (8, "size_class"),
        (9, "alias"),
        (10, "not_text"),
        (12, "no_price"),
    ]
    assert [(o.row, o.reason) for o in outcomes if isinstance(o, Quarantined)] == [
        (11, "placeholder"),
        (13, "contradiction"),
        (14, "malformed"),
        (15, "malformed"),
        (16, "malformed"),
    ]


def test_two_entries_of_one_model_do_not_differ_in_silence() -> None:
    """A bare id and one with its provider are one model: the first price holds, the other is told."""
    low = {"litellm_provider": "mistral", "mode": "chat", "input_cost_per_token": 2e-6, "output_cost_per_token": 6e-6}
    entries = {"mistral/large": low, "large": low | {"output_cost_per_token": 9e-6}, "x": low | {"source": "a\0"}}
    taken, other, unstorable = read_litellm(io.StringIO(json.dumps(entries)), DAY, "s")
    assert isinstance(taken, HostedPrice)
    assert isinstance(other, Quarantined)
    assert isinstance(unstorable, Quarantined)
    assert (other.reason, unstorable.reason) == ("contradiction", "malformed")


@pytest.mark.parametrize("text", ["", "[]", "{", "7"])
def test_another_file_is_refused(text: str) -> None:
    """The whole file is one object."""
    with pytest.raises(WrongFormat):
        list(read_litellm(io.StringIO(text), DAY, "s"))


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("groq/openai/gpt-oss-120b", "gpt-oss"),
        ("together_ai/Qwen/Qwen2.5-72B-Instruct", "qwen"),
        ("openai/gpt-5", ""),
        ("qwen-max", ""),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek"),
    ],
)
def test_family_is_what_the_id_says(model: str, family: str) -> None:
    """Closed siblings such as qwen-max have none."""
    assert family_of(model) == family
