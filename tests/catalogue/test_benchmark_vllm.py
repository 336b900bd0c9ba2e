"""Results of vLLM's serving benchmark, by file and by table.

The objects and tables were composed from `benchmarks/serve.py` of vLLM 0.6.6, 0.8.5, 0.11.2 and 0.33.0; the figures are
of one consistent run: 200 requests of 1,024 tokens in and 128 out in 40 s at 16 in flight.
"""

import json
from math import inf

import pytest

from service.catalogue.importers.benchmark import FormatNotUnderstood, read_benchmark
from service.catalogue.records.calibration import Latency

RESULT_0_33 = {
    "date": "20261130-163351",
    "endpoint_type": "openai",
    "backend": "openai",
    "label": None,
    "model_id": "Qwen/Qwen3-32B",
    "tokenizer_id": "Qwen/Qwen3-32B",
    "num_prompts": 200,
    "version": "0.33.0",
    "gpu": "NVIDIA H100 80GB HBM3",
    "tp": "2",
    "gpu_count": "2",
    "engine": "vllm",
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 16,
    "duration": 40.0,
    "completed": 200,
    "failed": 0,
    "total_input_tokens": 204800,
    "total_output_tokens": 25600,
    "request_throughput": 5.0,
    "request_goodput": None,
    "output_throughput": 640.0,
    "total_token_throughput": 5760.0,
    "max_output_tokens_per_s": 810.0,
    "max_concurrent_requests": 17,
    "rtfx": 0.0,
    "mean_ttft_ms": 380.5,
    "median_ttft_ms": 350.25,
    "std_ttft_ms": 90.0,
    "p99_ttft_ms": 900.75,
    "mean_tpot_ms": 22.2,
    "median_tpot_ms": 22.0,
    "std_tpot_ms": 1.0,
    "p99_tpot_ms": 25.5,
    "mean_itl_ms": 22.1,
    "median_itl_ms": 20.0,
    "std_itl_ms": 9.0,
    "p99_itl_ms": 80.0,
}
RESULT_0_6 = {
    "date": "20250105-091400",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "best_of": 1,
    "num_prompts": 200,
    "request_rate": 4.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 50.0,
    "completed": 200,
    "total_input_tokens": 40000,
    "total_output_tokens": 38000,
    "request_throughput": 4.0,
    "request_goodput:": None,
    "output_throughput": 760.0,
    "total_token_throughput": 1560.0,
    "mean_ttft_ms": 42.5,
    "median_ttft_ms": 40.0,
    "std_ttft_ms": 5.0,
    "p99_ttft_ms": 70.0,
    "mean_tpot_ms": 10.5,
    "median_tpot_ms": 10.0,
    "p99_tpot_ms": 14.0,
    "mean_itl_ms": 10.4,
    "median_itl_ms": 9.9,
    "p99_itl_ms": 30.0,
}
TABLE_0_33 = """\
Namespace(subparser='bench', backend='vllm', base_url=None, model='Qwen/Qwen3-32B', max_concurrency=16)
Traffic request rate: inf
Burstiness factor: 1.0 (Poisson process)
Maximum request concurrency: 16
100%|██████████| 200/200 [00:40<00:00,  5.00it/s]
============ Serving Benchmark Result ============
Successful requests:                     200
Failed requests:                         0
Maximum request concurrency:             16
Benchmark duration (s):                  40.00
Total input tokens:                      204800
Total generated tokens:                  25600
Request throughput (req/s):              5.00
Output token throughput (tok/s):         640.00
Peak output token throughput (tok/s):    810.00
Peak concurrent requests:                17.00
Total token throughput (tok/s):          5760.00
---------------Time to First Token----------------
Mean TTFT (ms):                          380.50
Median TTFT (ms):                        350.25
P99 TTFT (ms):                           900.75
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          22.20
Median TPOT (ms):                        22.00
P99 TPOT (ms):                           25.50
---------------Inter-token Latency----------------
Mean ITL (ms):                           22.10
Median ITL (ms):                         20.00
P99 ITL (ms):                            80.00
==================================================
"""


def test_result_of_0_33_with_metadata() -> None:
    """What `--metadata` added names the server; 204,800 / 200 = 1,024 tokens in, 25,600 / 200 = 128 out."""
    (row,) = read_benchmark(json.dumps(RESULT_0_33))
    assert (row.model, row.engine, row.engine_version) == ("Qwen/Qwen3-32B", "vllm", "0.33.0")
    assert (row.gpu, row.gpu_count, row.tensor_parallel_size) == ("NVIDIA H100 80GB HBM3", 2, 2)
    figures = row.figures
    assert (figures.input_tokens_mean, figures.output_tokens_mean) == (1024.0, 128.0)
    assert (figures.concurrency, figures.request_rate) == (16.0, inf)
    assert (figures.requests, figures.failed, figures.duration_s) == (200, 0, 40.0)
    assert figures.ttft == Latency(mean_ms=380.5, median_ms=350.25, p99_ms=900.75)
    assert figures.tpot == Latency(mean_ms=22.2, median_ms=22.0, p99_ms=25.5)
    assert figures.itl == Latency(mean_ms=22.1, median_ms=20.0, p99_ms=80.0)
    assert (figures.output_tokens_per_s, figures.total_tokens_per_s, figures.requests_per_s) == (640.0, 5760.0, 5.0)
    assert row.missing == ()
    assert row.contradictions == ()


def test_result_of_0_6_names_little_of_the_server() -> None:
    """Without metadata the file says neither version nor GPU; they are named as missing."""
    (row,) = read_benchmark(json.dumps(RESULT_0_6))
    assert row.engine == "vllm"
    assert (row.figures.concurrency, row.figures.request_rate) == (None, 4.0)
    assert row.missing == ("engine_version", "gpu", "gpu_count", "tensor_parallel_size")
    assert row.contradictions == ()


def test_the_openai_protocol_names_no_engine() -> None:
    """`--backend openai-chat` says how the server was spoken to, not what it is."""
    (row,) = read_benchmark(json.dumps({**RESULT_0_6, "backend": "openai-chat"}))
    assert row.engine is None
    assert "engine" in row.missing


def test_appended_results_are_json_lines() -> None:
    """`--append-result` writes one object a line."""
    rows = read_benchmark(json.dumps(RESULT_0_6) + "\n" + json.dumps({**RESULT_0_6, "request_rate": 8.0}) + "\n")
    assert [row.figures.request_rate for row in rows] == [4.0, 8.0]


def test_table_gives_what_the_file_gives() -> None:
    """The console's table and the result file of one run agree, to the table's two decimals."""
    (row,) = read_benchmark(TABLE_0_33)
    (file_row,) = read_benchmark(json.dumps(RESULT_0_33))
    assert row.figures == file_row.figures
    assert (row.model, row.engine) == ("Qwen/Qwen3-32B", "vllm")


@pytest.mark.parametrize("prefix", ["", "# ", "> ", "    "])
def test_tables_are_found_in_prose_and_behind_quoting(prefix: str) -> None:
    """Two tables in one paste are two rows; comments and quotes before them do not matter."""
    older = TABLE_0_33.replace("Total token throughput", "Total Token throughput").replace("TTFT (ms):  ", "TTFT (ms):")
    lines = f"some words\n{TABLE_0_33}\nmore words\n{older}".split("\n")
    text = "\n".join(f"{prefix}{line}      " for line in lines)
    rows = read_benchmark(text)
    assert len(rows) == 2
    assert {row.figures.output_tokens_per_s for row in rows} == {640.0}
    assert {row.figures.total_tokens_per_s for row in rows} == {5760.0}
    assert {row.figures.concurrency for row in rows} == {16.0}


def test_sglangs_table_is_of_sglang() -> None:
    """SGLang's benchmark prints the same table with its backend in it."""
    (row,) = read_benchmark(
        "============ Serving Benchmark Result ============\n"
        "Backend:                                 sglang    \n"
        "Traffic request rate:                    inf       \n"
        "Max request concurrency:                 16        \n"
        "Successful requests:                     200       \n"
        "Benchmark duration (s):                  40.00     \n"
        "Total input tokens:                      204800    \n"
        "Total generated tokens:                  25600     \n"
        "Request throughput (req/s):              5.00      \n"
        "Output token throughput (tok/s):         640.00    \n"
        "Mean TTFT (ms):                          380.50    \n"
        "Mean TPOT (ms):                          22.20     \n"
    )
    assert (row.engine, row.figures.concurrency) == ("sglang", 16.0)


def test_answers_of_one_token_have_no_time_per_token() -> None:
    """The benchmark writes zeros where no request had a second token; a zero is not a measurement."""
    zeros = {key: 0.0 for key in RESULT_0_6 if "tpot" in key or "itl" in key}
    (row,) = read_benchmark(json.dumps({**RESULT_0_6, **zeros, "total_output_tokens": 200, "output_throughput": 4.0}))
    assert row.figures.tpot == Latency()
    assert "tpot" in row.missing


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"output_throughput": 900.0}, "25600 output tokens in 40 s are not 900 a second"),
        ({"request_throughput": 7.0}, "200 requests in 40 s are not 7 a second"),
        ({"median_ttft_ms": 1000.0}, "TTFT: the median of 1000 ms is above the P99 of 900.75 ms"),
        ({"max_concurrency": 4}, "more than the 4 allowed"),
    ],
)
def test_figures_that_contradict_each_other_are_found(change: dict[str, float], reason: str) -> None:
    """5 requests a second of 380.5 + 127 x 22.2 = 3,199.9 ms are 16.0 in flight."""
    (row,) = read_benchmark(json.dumps({**RESULT_0_33, **change}))
    assert any(reason in each for each in row.contradictions), row.contradictions


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"avg_latency": 1.2, "latencies": [1.2], "percentiles": {"99": 1.3}}', "vllm bench latency"),
        ('{"elapsed_time": 3.0, "num_requests": 10, "tokens_per_second": 4.0}', "vllm bench throughput"),
        ('{"request_throughput": 3.0, "mean_ttft_ms": 1.0, "input_sequence_throughput": 3.0}', "embedding"),
        ('{"request_throughput": 3.0, "output_throughput": ', "JSON cannot be read"),
        ("{'not': 'json'}", "JSON cannot be read"),
        ('{"a": 1}', "no known result"),
        ("[1, 2]", "not int"),
        ("============ Serving Benchmark Result ============\n", "Request throughput"),
        ("Hello", "no load test was found"),
        ("", "no load test was found"),
    ],
)
def test_what_is_no_load_test_is_refused_by_name(text: str, word: str) -> None:
    """The refusal says what was found, or what was looked for."""
    with pytest.raises(FormatNotUnderstood, match=word):
        read_benchmark(text)
