"""Damaged result files and link tests are read or refused, and nothing else."""

import json
import random
from typing import Any, cast

import pytest

from service.catalogue.importers.benchmark import FormatNotUnderstood, read_benchmark
from service.catalogue.importers.nccl import TableNotUnderstood, read_link_tests
from tests.catalogue import test_benchmark_tools as tools
from tests.catalogue import test_benchmark_vllm as vllm
from tests.catalogue.test_nccl import H100

DOCUMENTS: tuple[object, ...] = (
    vllm.RESULT_0_33,
    vllm.RESULT_0_6,
    tools.GUIDELLM_0_2,
    tools.GUIDELLM_0_8,
    tools.GENAI_PERF,
    tools.AIPERF,
    {"benchmarks": [tools.PLANNER_ROW]},
    tools.REPORT_0_1,
    tools.REPORT_0_2_1,
    tools.OWN,
)
STRANGE: tuple[object, ...] = (
    None, True, -1, 0, 1e308, float("nan"), float("inf"), 10**400, "", "inf", "NaN", "1e999", "1,024", "\x00", [], {},
    [{}], "é",
)  # fmt: skip
SCRAPS = ("\n", " ", ",", "{", "}", '"', "0", "-", ".", "N/A", "#", "\x00", "nan", "1e9")


def damaged(value: object, rng: random.Random) -> object:
    """The document with something strange in a random place."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        fields = cast("dict[str, Any]", dict(value))
        key = rng.choice(list(fields))
        if rng.random() < 0.1:
            del fields[key]
        else:
            fields[key] = damaged(fields[key], rng)
        return fields
    if isinstance(value, list) and value and rng.random() < 0.9:
        elements = cast("list[object]", list(value))
        at = rng.randrange(len(elements))
        elements[at] = damaged(elements[at], rng)
        return elements
    return rng.choice(STRANGE)


def damaged_text(text: str, rng: random.Random) -> str:
    """The text with something cut out or put in."""
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(("", rng.choice(SCRAPS))) + text[at + rng.choice((0, 1, 3, 60)) :]


@pytest.mark.parametrize("seed", range(4))
def test_strange_values_in_result_files(seed: int) -> None:
    """Any value of any field may be of any kind; figures that come out are positive or absent."""
    rng = random.Random(seed)
    for _ in range(400):
        document = rng.choice(DOCUMENTS)
        for _ in range(rng.choice((1, 1, 2, 5))):
            document = damaged(document, rng)
        try:
            rows = read_benchmark(json.dumps(document))
        except FormatNotUnderstood:
            continue
        for row in rows:
            rates = (row.figures.output_tokens_per_s, row.figures.requests_per_s, row.figures.input_tokens_mean)
            assert all(rate is None or rate > 0 for rate in rates)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_texts_of_load_tests(seed: int) -> None:
    """JSON, tables and CSV with parts missing are read or refused."""
    rng = random.Random(seed)
    header, cells = ",".join(tools.OWN), ",".join(map(str, tools.OWN.values()))
    texts = [json.dumps(document) for document in DOCUMENTS] + [vllm.TABLE_0_33, f"{header}\n{cells}\n"]
    for _ in range(400):
        text = rng.choice(texts)
        for _ in range(rng.choice((1, 2, 5))):
            text = damaged_text(text, rng) or "\n"
        try:
            assert read_benchmark(text)
        except FormatNotUnderstood:
            continue


@pytest.mark.parametrize("seed", range(4))
def test_damaged_link_tests(seed: int) -> None:
    """A table with parts missing is read or refused; every number that comes out stood in it."""
    rng = random.Random(seed)
    for _ in range(400):
        text = H100
        for _ in range(rng.choice((1, 2, 5))):
            text = damaged_text(text, rng) or "\n"
        try:
            tests = read_link_tests(text)
        except TableNotUnderstood:
            continue
        for test in tests:
            for point in (*test.out_of_place, *test.in_place):
                assert str(point.size_bytes) in text
                assert f"{point.time_us:g}"[:4] in text
