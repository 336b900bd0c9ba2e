"""Results of GuideLLM, GenAI-Perf, AIPerf and llm-d, and our own rows.

Composed by hand after the tools' own schemas: GuideLLM 0.2.1, 0.4.0, 0.6.0 and 0.8.1; GenAI-Perf 0.0.16; AIPerf 0.13.0;
llm-d-benchmark's reports 0.1 and 0.2.1; llm-d-planner's rows.
"""

import json
from math import inf

import pytest

from service.catalogue.importers.benchmark import FormatNotUnderstood, read_benchmark
from service.catalogue.importers.benchmark.own import COLUMNS
from service.catalogue.records.calibration import Latency


def summary(mean: float, median: float, p99: float) -> dict[str, object]:
    """A distribution as GuideLLM writes it."""
    successful = {"mean": mean, "median": median, "count": 10, "percentiles": {"p90": p99, "p95": p99, "p99": p99}}
    return {"successful": successful, "errored": {"mean": 0.0}, "incomplete": {"mean": 0.0}, "total": successful}


GUIDELLM_METRICS = {
    "requests_per_second": summary(5.0, 5.0, 6.0),
    "request_concurrency": summary(15.5, 16.0, 16.0),
    "request_latency": summary(3.2, 3.1, 4.0),
    "prompt_token_count": summary(1024.0, 1024.0, 1030.0),
    "output_token_count": summary(128.0, 128.0, 128.0),
    "time_to_first_token_ms": summary(380.5, 350.25, 900.75),
    "time_per_output_token_ms": summary(25.0, 24.0, 30.0),
    "inter_token_latency_ms": summary(22.2, 22.0, 25.5),
    "output_tokens_per_second": summary(640.0, 0.1, 1000.0),
    "tokens_per_second": summary(5760.0, 0.1, 9000.0),
}
GUIDELLM_0_2 = {
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "args": {"strategy": {"type_": "concurrent", "streams": 16}, "strategy_index": 0},
            "run_stats": {"requests_made": {"successful": 200, "incomplete": 3, "errored": 1, "total": 204}},
            "worker": {"type_": "generative_requests_worker", "backend_model": "Qwen/Qwen3-32B"},
            "duration": 40.0,
            "metrics": GUIDELLM_METRICS,
        }
    ]
}
TOTALS = {"request_totals": {"successful": 200, "incomplete": 3, "errored": 1, "total": 204}}
GUIDELLM_0_4 = {
    "args": {"target": "http://localhost:8000"},
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {
                "strategy": {"type_": "poisson", "rate": 5.0, "max_concurrency": None},
                "backend": {"target": "http://localhost:8000", "model": "Qwen/Qwen3-32B"},
            },
            "duration": 40.0,
            "metrics": {**GUIDELLM_METRICS, **TOTALS},
        },
        {
            "type_": "generative_benchmark",
            "config": {"strategy": {"type_": "synchronous"}, "backend": {"model": "Qwen/Qwen3-32B"}},
            "duration": 40.0,
            "metrics": {**GUIDELLM_METRICS, **TOTALS},
        },
    ],
}
GUIDELLM_0_8 = {
    **GUIDELLM_0_4,
    "metadata": {"version": 2, "guidellm_version": "0.8.1", "python_version": "3.12.3"},
    "conclusions": [],
}

GENAI_PERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 5.0},
    "request_latency": {"unit": "ms", "avg": 3199.9, "p50": 3100.0, "p90": 3900.0, "p95": 3950.0, "p99": 4000.0},
    "time_to_first_token": {"unit": "ms", "avg": 380.5, "p50": 350.25, "p90": 700.0, "p95": 800.0, "p99": 900.75},
    "inter_token_latency": {"unit": "ms", "avg": 22.2, "p50": 22.0, "p90": 24.0, "p95": 25.0, "p99": 25.5},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 640.0},
    "output_token_throughput_per_user": {"unit": "tokens/sec/user", "avg": 45.0, "p50": 45.4},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
    "request_count": {"unit": "count", "avg": 200.0},
    "input_config": {
        "model_names": ["Qwen/Qwen3-32B"],
        "endpoint": {"backend": "vllm", "type": "chat", "streaming": True},
        "perf_analyzer": {"stimulus": {"concurrency": 16}},
    },
}
AIPERF = {
    **{name: metric for name, metric in GENAI_PERF.items() if name != "input_config"},
    "schema_version": "1.4",
    "aiperf_version": "0.13.0",
    "benchmark_duration": {"unit": "sec", "avg": 40.0},
    "error_request_count": {"unit": "requests", "avg": 2.0},
    "input_config": {
        "models": {"items": [{"name": "Qwen/Qwen3-32B"}]},
        "loadgen": {"concurrency": 16, "request_rate": None},
    },
    "telemetry_data": {
        "endpoints": {
            "node-1": {
                "gpus": {
                    "gpu_0": {"gpu_index": 0, "gpu_name": "NVIDIA H100 80GB HBM3"},
                    "gpu_1": {"gpu_index": 1, "gpu_name": "NVIDIA H100 80GB HBM3"},
                }
            }
        }
    },
}

PLANNER_ROW = {
    "model_hf_repo": "Qwen/Qwen3-32B",
    "hardware": "H100",
    "hardware_count": 2,
    "framework": "vllm",
    "framework_version": "v0.8.4",
    "prompt_tokens": 1000,
    "output_tokens": 120,
    "mean_input_tokens": 1024,
    "mean_output_tokens": 128,
    "ttft_mean": 380.5,
    "ttft_p90": 700.0,
    "ttft_p95": 800.0,
    "ttft_p99": 900.75,
    "itl_mean": 22.2,
    "itl_p99": 25.5,
    "e2e_mean": 3199.9,
    "requests_per_second": 5.0,
    "responses_per_second": 4.99,
    "tokens_per_second": 640.0,
}
REPORT_0_1 = {
    "version": "0.1",
    "scenario": {
        "model": {"name": "Qwen/Qwen3-32B"},
        "host": {
            "type": ["replica"],
            "accelerator": [{"model": "NVIDIA-H100-80GB-HBM3", "count": 2, "parallelism": {"tp": 2, "dp": 1}}],
        },
        "platform": {"engine": [{"name": "docker.io/vllm/vllm-openai:v0.11.0"}]},
        "load": {"name": "vllm-benchmark", "args": {"max_concurrency": 16, "request_rate": "inf"}},
    },
    "metrics": {
        "time": {"duration": 40.0},
        "requests": {
            "total": 201,
            "failures": 1,
            "input_length": {"units": "count", "mean": 1024.0},
            "output_length": {"units": "count", "mean": 128.0},
        },
        "latency": {
            "time_to_first_token": {"units": "ms", "mean": 380.5, "p50": 350.25, "p99": 900.75},
            "time_per_output_token": {"units": "ms/token", "mean": 22.2, "p50": 22.0, "p99": 25.5},
        },
        "throughput": {"output_tokens_per_sec": 640.0, "total_tokens_per_sec": 5760.0, "requests_per_sec": 5.0},
    },
}
REPORT_0_2_1 = {
    "version": "0.2.1",
    "run": {"uid": "1"},
    "scenario": {
        "load": {"standardized": {"tool": "inference-perf", "rate_qps": 5.0, "concurrency": None}},
        "stack": [
            {
                "metadata": {"label": "vllm-svc-0", "cfg_id": "1"},
                "standardized": {
                    "kind": "inference_engine",
                    "tool": "vllm",
                    "model": {"name": "Qwen/Qwen3-32B"},
                    "replicas": 2,
                    "role": "replica",
                    "accelerator": {
                        "model": "NVIDIA-H100-80GB-HBM3",
                        "count": 8,
                        "parallelism": {"tp": 8, "pp": 1, "dp": 1, "ep": 1},
                    },
                },
            },
            {"metadata": {"label": "epp-0", "cfg_id": "2"}, "standardized": {"kind": "generic", "tool": "router"}},
        ],
    },
    "results": {
        "request_performance": {
            "aggregate": {
                "requests": {
                    "total": 200,
                    "failures": 0,
                    "input_length": {"units": "count", "mean": 1024.0},
                    "output_length": {"units": "count", "mean": 128.0},
                },
                "latency": {
                    "time_to_first_token": {"units": "s", "mean": 0.3805, "p50": 0.35025, "p99": 0.90075},
                    "time_per_output_token": {"units": "s/token", "mean": 0.0222, "p50": 0.022, "p99": 0.0255},
                },
                "throughput": {
                    "output_token_rate": {"units": "tokens/s", "mean": 640.0},
                    "request_rate": {"units": "queries/s", "mean": 5.0},
                },
            }
        }
    },
}
OWN = {
    "model": "Qwen/Qwen3-32B",
    "engine": "vllm",
    "engine_version": "0.33.0",
    "gpu": "h100-sxm",
    "gpu_count": 2,
    "tensor_parallel_size": 2,
    "input_tokens_mean": 1024,
    "output_tokens_mean": 128,
    "concurrency": 16,
    "requests": 200,
    "duration_s": 40,
    "ttft_median_ms": 350.25,
    "tpot_median_ms": 22,
    "output_tokens_per_s": 640,
}


@pytest.mark.parametrize(
    ("report", "generation"),
    [(GUIDELLM_0_2, "0.2 or 0.3"), (GUIDELLM_0_4, "0.4"), (GUIDELLM_0_8, "0.8.1")],
)
def test_guidellm_of_each_generation(report: dict[str, object], generation: str) -> None:
    """Figures of answered requests; TPOT is the latency between tokens, not GuideLLM's own time per output token."""
    row = read_benchmark(json.dumps(report))[0]
    assert generation in row.format
    assert row.model == "Qwen/Qwen3-32B"
    assert row.figures.ttft == Latency(380.5, 350.25, 900.75, 900.75, 900.75)
    assert row.figures.tpot == Latency(22.2, 22.0, 25.5, 25.5, 25.5)
    assert row.figures.e2e.mean_ms == 3200.0
    assert (row.figures.requests, row.figures.failed) == (200, 1)
    assert (row.figures.input_tokens_mean, row.figures.output_tokens_mean) == (1024.0, 128.0)
    assert row.figures.output_tokens_per_s == 640.0
    assert row.contradictions == ()
    assert {"engine", "engine_version", "gpu"} <= set(row.missing)


def test_guidellm_strategies_are_loads() -> None:
    """Streams are requests in flight; a rate is a rate; synchronous is one in flight; throughput has no limit."""
    assert read_benchmark(json.dumps(GUIDELLM_0_2))[0].figures.concurrency == 16.0
    poisson, synchronous = read_benchmark(json.dumps(GUIDELLM_0_4))
    assert (poisson.figures.request_rate, poisson.figures.concurrency) == (5.0, None)
    assert (synchronous.figures.request_rate, synchronous.figures.concurrency) == (None, 1.0)
    throughput = json.loads(json.dumps(GUIDELLM_0_2))
    throughput["benchmarks"][0]["args"]["strategy"] = {"type_": "throughput", "max_concurrency": None}
    assert read_benchmark(json.dumps(throughput))[0].figures.request_rate == inf


def test_guidellm_without_streaming_has_no_times() -> None:
    """Zeros stand where nothing was streamed."""
    report = json.loads(json.dumps(GUIDELLM_0_2))
    for name in ("time_to_first_token_ms", "inter_token_latency_ms"):
        report["benchmarks"][0]["metrics"][name] = summary(0.0, 0.0, 0.0)
    (row,) = read_benchmark(json.dumps(report))
    assert {"ttft", "tpot"} <= set(row.missing)


def test_guidellm_0_1_is_refused_by_name() -> None:
    """The first reports hold requests and no statistics."""
    with pytest.raises(FormatNotUnderstood, match=r"GuideLLM 0\.1"):
        read_benchmark(json.dumps({"benchmarks": [{"mode": "synchronous", "rate": None, "results": []}]}))


def test_genai_perf() -> None:
    """Every metric has its unit; the model and the load are in the input configuration."""
    (row,) = read_benchmark(json.dumps(GENAI_PERF))
    assert row.format == "GenAI-Perf"
    assert (row.model, row.engine) == ("Qwen/Qwen3-32B", "vllm")
    assert row.figures.concurrency == 16.0
    assert row.figures.ttft == Latency(380.5, 350.25, 700.0, 800.0, 900.75)
    assert row.figures.tpot == Latency(22.2, 22.0, 24.0, 25.0, 25.5)
    assert (row.figures.requests, row.figures.output_tokens_per_s) == (200, 640.0)
    assert row.missing == ("engine_version", "gpu", "gpu_count", "tensor_parallel_size")


def test_aiperf_knows_the_cards() -> None:
    """Telemetry names the GPUs; the configuration's model is nested."""
    (row,) = read_benchmark(json.dumps(AIPERF))
    assert row.format == "AIPerf 0.13.0"
    assert (row.model, row.gpu, row.gpu_count) == ("Qwen/Qwen3-32B", "NVIDIA H100 80GB HBM3", 2)
    assert (row.figures.duration_s, row.figures.failed) == (40.0, 2)
    assert row.contradictions == ()


def test_times_in_other_units_are_converted_and_unknown_units_refused() -> None:
    """Nanoseconds become milliseconds; furlongs do not."""
    in_ns = {**GENAI_PERF, "time_to_first_token": {"unit": "ns", "avg": 380_500_000.0}}
    ttft = read_benchmark(json.dumps(in_ns))[0].figures.ttft
    assert ttft.mean_ms == pytest.approx(380.5)
    with pytest.raises(FormatNotUnderstood, match="furlong"):
        read_benchmark(json.dumps({**GENAI_PERF, "time_to_first_token": {"unit": "furlong", "avg": 1.0}}))


def test_two_loads_in_one_configuration_are_no_load() -> None:
    """Where a configuration names two concurrencies, none is taken."""
    config = {"warmup": {"concurrency": 4}, "loadgen": {"concurrency": 16}}
    (row,) = read_benchmark(json.dumps({**AIPERF, "input_config": config}))
    assert row.figures.concurrency is None
    assert "load" in row.missing


def test_llm_d_planner_rows_in_json_and_csv() -> None:
    """The measured lengths win over the nominal ones; the number of GPUs is not taken for a layout."""
    header, cells = ",".join(PLANNER_ROW), ",".join(str(value) for value in PLANNER_ROW.values())
    for text in (json.dumps({"benchmarks": [PLANNER_ROW]}), json.dumps([PLANNER_ROW]), f"{header}\n{cells}\n"):
        (row,) = read_benchmark(text)
        assert (row.model, row.engine, row.engine_version) == ("Qwen/Qwen3-32B", "vllm", "0.8.4")
        assert (row.gpu, row.gpu_count, row.tensor_parallel_size) == ("H100", 2, None)
        assert (row.figures.input_tokens_mean, row.figures.output_tokens_mean) == (1024.0, 128.0)
        assert (row.figures.request_rate, row.figures.requests_per_s) == (5.0, 4.99)
        assert row.measured


@pytest.mark.parametrize(
    "document",
    [
        {
            "_metadata": {"description": "Synthetic benchmark data", "source": "BLIS simulator"},
            "benchmarks": [PLANNER_ROW],
        },
        {"benchmarks": [{**PLANNER_ROW, "estimated": True}]},
        {"benchmarks": [{**PLANNER_ROW, "framework_version": "estimated"}]},
    ],
)
def test_simulated_rows_are_not_measurements(document: dict[str, object]) -> None:
    """A file that says its figures were simulated or estimated is believed."""
    (row,) = read_benchmark(json.dumps(document))
    assert not row.measured
    assert row.notes


def test_llm_d_benchmark_report_0_1() -> None:
    """The engine's version is the tag of its image; 201 requests of which 1 failed are 200 answers."""
    (row,) = read_benchmark(json.dumps(REPORT_0_1))
    assert (row.engine, row.engine_version) == ("vllm", "0.11.0")
    assert (row.gpu, row.gpu_count, row.tensor_parallel_size) == ("NVIDIA-H100-80GB-HBM3", 2, 2)
    assert (row.figures.requests, row.figures.failed, row.figures.concurrency) == (200, 1, 16.0)
    assert row.missing == ()


def test_llm_d_benchmark_report_0_2_1() -> None:
    """Two replicas of 8 GPUs are 16; seconds become milliseconds; the router is no engine."""
    (row,) = read_benchmark(json.dumps(REPORT_0_2_1))
    assert (row.model, row.engine, row.gpu_count, row.tensor_parallel_size) == ("Qwen/Qwen3-32B", "vllm", 16, 8)
    assert row.figures.ttft.median_ms == pytest.approx(350.25)
    assert row.figures.tpot.p99_ms == pytest.approx(25.5)
    assert (row.figures.request_rate, row.figures.output_tokens_per_s) == (5.0, 640.0)


def test_engines_that_differ_are_no_single_deployment() -> None:
    """Prefill and decode engines of different sizes leave GPU and layout open."""
    report = json.loads(json.dumps(REPORT_0_2_1))
    other = json.loads(json.dumps(report["scenario"]["stack"][0]))
    other["standardized"]["accelerator"]["count"] = 4
    report["scenario"]["stack"].append(other)
    (row,) = read_benchmark(json.dumps(report))
    assert (row.gpu, row.gpu_count, row.tensor_parallel_size) == (None, None, None)


def test_own_rows_in_json_and_csv() -> None:
    """The columns we publish, in either form; empty cells are absent."""
    header = ",".join([*OWN, "itl_mean_ms"])
    cells = ",".join([*(str(value) for value in OWN.values()), ""])
    for text in (json.dumps(OWN), json.dumps([OWN]), f"\ufeff{header}\r\n{cells}\r\n"):
        (row,) = read_benchmark(text)
        assert (row.gpu, row.engine_version, row.figures.ttft.median_ms) == ("h100-sxm", "0.33.0", 350.25)
        assert row.missing == ()
        assert row.contradictions == ()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"ttft_seconds": 1}, "unknown column 'ttft_seconds'"),
        ({"ttft_median_ms": "fast"}, "ttft_median_ms is 'fast'"),
        ({"tpot_median_ms": -3}, "tpot_median_ms is -3"),
        ({"gpu_count": 1.5}, "gpu_count is 1.5"),
        ({"gpu_count": 0}, "gpu_count is 0"),
        ({"requests": -1}, "requests is -1"),
    ],
)
def test_own_rows_are_refused_by_column(change: dict[str, object], word: str) -> None:
    """A column that is unknown, or a value that cannot be, is named."""
    with pytest.raises(FormatNotUnderstood, match=word):
        read_benchmark(json.dumps({**OWN, **change}))


def test_ragged_csv_is_refused_by_row() -> None:
    """A row with a cell too few is named by its line."""
    with pytest.raises(FormatNotUnderstood, match="row 3"):
        read_benchmark("model,gpu,ttft_mean_ms\na,b,1\na,b\n")


def test_every_column_is_read_into_something() -> None:
    """A row with every column set leaves none of them out of what is read."""
    full: dict[str, object] = dict.fromkeys(COLUMNS, 7)
    full |= {
        "model": "m",
        "engine": "vllm",
        "engine_version": "1",
        "gpu": "g",
        "quantization": "q",
        "kv_cache_dtype": "k",
    }
    (row,) = read_benchmark(json.dumps(full))
    assert repr(row).count("=7") == len(COLUMNS) - 6
