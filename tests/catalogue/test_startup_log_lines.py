"""Every line format in which vLLM 0.6 to 0.33 prints a figure of its startup is read.

The lines were made by hand from vLLM's format strings (sources in `startup_log/lines.py` and `failures.py`).
"""

import pytest

from service.catalogue.importers.startup_log import LogNotUnderstood, Readings, read_startup_log

V0_PROFILE = (
    "INFO 01-05 09:14:20 worker.py:241] Memory profiling takes 0.77 seconds\r\n"
    "INFO 01-05 09:14:20 worker.py:241] the current vLLM instance can use total_gpu_memory (79.15GiB)"
    " x gpu_memory_utilization (0.90) = 71.24GiB\r\n"
    "INFO 01-05 09:14:20 worker.py:241] model weights take 14.99GiB; non_torch_memory takes 0.09GiB; PyTorch activation"
    " peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is 54.90GiB."
)
SUMMARY_0_11 = (
    "Free memory on device (138.45/139.8 GiB) on startup. Desired GPU memory utilization is (0.92, 128.62 GiB). Actual "
    "usage is 16.96 GiB for weight, 5.21 GiB for peak activation, 0.3 GiB for non-torch memory, and -0.17 GiB for "
    "CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=113997812531` (106.17 GiB) to fit "
    "into requested memory, or `--kv-cache-memory=124551168000` (116.0 GiB) to fully utilize gpu memory. Current kv "
    "cache memory in use is 106.15 GiB."
)
SUMMARY_0_33 = (
    "Free memory on device (78.6/79.19 GiB) on startup. Desired GPU memory utilization is (0.92, 72.85 GiB). Actual "
    "usage is 14.51 GiB for consumed memory (weights + non-torch), 3.34 GiB for peak activation, and 1.02 GiB for "
    "CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=57809932845` (53.84 GiB) to fit "
    "into requested memory, or `--kv-cache-memory=63980000000` (59.59 GiB) to fully utilize gpu memory. Current kv "
    "cache memory in use is 55.0 GiB."
)
SUMMARY_CUT_BY_HAND = (
    "Actual usage is 10.29 GiB for consumed memory (weights + non-torch), 0.27 GiB for peak activation,\n"
    "and 0.78 GiB for CUDAGraph memory. \u2026 Current kv cache memory in use is 3.1 GiB."
)

FIGURES = [
    ("Loading model weights took 14.9888 GB", {"weights_gib": 14.9888}),
    ("Model loading took 4.0323 GB and 1.217729 seconds", {"weights_gib": 4.0323}),
    ("Model loading took 30.7097 GiB and 16.311204 seconds", {"weights_gib": 30.7097}),
    ("Model loading took 16.9619 GiB memory and 11.021532 seconds", {"weights_gib": 16.9619}),
    ("Model loading took 5.0 GiB memory and 7.102331 seconds", {"weights_gib": 5.0}),
    ("Available KV cache memory: 106.15 GiB", {"available_kv_gib": 106.15}),
    ("Available KV cache memory: -2.81 GiB", {"available_kv_gib": -2.81}),
    (
        "Initial free memory 31.17 GiB, reserved 1.62 GiB memory for KV Cache as specified by kv_cache_memory_bytes "
        "config and skipped memory profiling. This does not respect the gpu_memory_utilization config.",
        {"free_gib": 31.17, "reserved_kv_gib": 1.62, "available_kv_gib": 1.62},
    ),
    (
        # Printed by vLLM 0.6.4 on an H200.
        "Memory profiling results: total_gpu_memory=139.80GiB initial_memory_usage=2.71GiB peak_torch_memory=2.38GiB "
        "memory_usage_post_profile=2.81GiB non_torch_memory=0.73GiB kv_cache_size=122.71GiB "
        "gpu_memory_utilization=0.90",
        {"gpu_total_gib": 139.80, "non_torch_gib": 0.73, "available_kv_gib": 122.71},
    ),
    ("GPU KV cache size: 1,391,344 tokens", {"kv_tokens": 1391344}),
    ("GPU KV cache size: 512 tokens", {"kv_tokens": 512}),
    (
        "Maximum concurrency for 8,192 tokens per request: 169.84x",
        {"concurrency_tokens": 8192, "max_concurrency": 169.84},
    ),
    (
        "GPU KV cache size: 1,921,515 tokens, Maximum concurrency for 131,072 tokens per request: 14.66x",
        {"kv_tokens": 1921515, "concurrency_tokens": 131072, "max_concurrency": 14.66},
    ),
    (
        "GPU + host KV cache size: 40,960 tokens, Maximum concurrency for 4,096 tokens per request: 10.00x",
        {"kv_tokens": 40960, "concurrency_tokens": 4096, "max_concurrency": 10.0},
    ),
    ("# GPU blocks: 28108, # CPU blocks: 2048", {"gpu_blocks": 28108, "cpu_blocks": 2048}),
    ("# cuda blocks: 13618, # CPU blocks: 2048", {"gpu_blocks": 13618, "cpu_blocks": 2048}),
    ("# CUDA blocks: 13618, # CPU blocks: 2048", {"gpu_blocks": 13618, "cpu_blocks": 2048}),
    ("# GPU blocks: 28108", {"gpu_blocks": 28108}),
    (
        "Maximum concurrency for 2048 tokens per request: 106.39x",
        {"concurrency_tokens": 2048, "max_concurrency": 106.39},
    ),
    (
        V0_PROFILE,
        {
            "gpu_total_gib": 79.15,
            "requested_gib": 71.24,
            "weights_gib": 14.99,
            "non_torch_gib": 0.09,
            "activation_peak_gib": 1.26,
            "available_kv_gib": 54.90,
        },
    ),
    ("Graph capturing finished in 15 secs, took 0.27 GiB", {"cudagraph_gib": 0.27}),
    ("Graph capturing finished in 21 secs, took -0.17 GiB", {"cudagraph_gib": -0.17}),
    (
        "CUDA graph pool memory: 1.02 GiB (actual), 1.14 GiB (estimated), difference: 0.12 GiB (11.8%).",
        {"cudagraph_gib": 1.02, "cudagraph_estimate_gib": 1.14},
    ),
    ("Estimated CUDA graph memory: 0.39 GiB total", {"cudagraph_estimate_gib": 0.39}),
    (
        SUMMARY_0_11,
        {
            "free_gib": 138.45,
            "gpu_total_gib": 139.8,
            "requested_gib": 128.62,
            "weights_gib": 16.96,
            "activation_peak_gib": 5.21,
            "non_torch_gib": 0.3,
            "cudagraph_gib": -0.17,
            "kv_in_use_gib": 106.15,
        },
    ),
    (
        SUMMARY_0_33,
        {
            "free_gib": 78.6,
            "gpu_total_gib": 79.19,
            "requested_gib": 72.85,
            "consumed_gib": 14.51,
            "activation_peak_gib": 3.34,
            "cudagraph_gib": 1.02,
            "kv_in_use_gib": 55.0,
        },
    ),
    (
        SUMMARY_CUT_BY_HAND,
        {"consumed_gib": 10.29, "activation_peak_gib": 0.27, "cudagraph_gib": 0.78, "kv_in_use_gib": 3.1},
    ),
    (
        "Setting attention block size to 2096 tokens to ensure that attention page size is >= mamba page size.",
        {"attention_block_size": 2096},
    ),
    (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.69 GiB. GPU 0 has a total capacity "
            "of 79.11 GiB"
            " of which 1.32 GiB is free."
        ),
        {"gpu_total_gib": 79.11},
    ),
]


@pytest.mark.parametrize(("line", "expected"), FIGURES, ids=[line[:60] for line, _ in FIGURES])
def test_each_line_format_gives_its_figures(line: str, expected: dict[str, float]) -> None:
    """The line alone, and behind the prefixes of 0.6, of 0.11 and of 0.33, gives the same figures."""
    for prefix in ("", "INFO 01-05 09:14:20 worker.py:241] ", "(Worker_TP0 pid=12) INFO 12-01 07:03:59 [w.py:35] "):
        log = read_startup_log(f"{prefix}{line}\nINFO:     Application startup complete.\n")
        for name, value in expected.items():
            figure = getattr(log, name)
            assert isinstance(figure, Readings), name
            assert figure.low == figure.high == value, name


CONDITIONS = [
    ("Using max model len 131072", {"max_model_len": 131072}),
    (
        "Auto-fit max_model_len: reduced from 131072 to 40960 to fit in available KV cache memory (3.1 GiB GPU)",
        {"max_model_len": 40960},
    ),
    (
        "Auto-fit max_model_len: full model context length 32768 fits in available KV cache memory (30.0 GiB GPU)",
        {"max_model_len": 32768},
    ),
    ("Chunked prefill is enabled with max_num_batched_tokens=8192.", {"max_num_batched_tokens": 8192}),
    ("Overriding num_gpu_blocks=100 with num_gpu_blocks_override=64", {"num_gpu_blocks_override": 64}),
    (
        (
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
            "--gpu-memory-utilization=0.9000 is "
            "equivalent to --gpu-memory-utilization=0.8878 without CUDA graph memory profiling."
        ),
        {"gpu_memory_utilization": 0.9},
    ),
    (SUMMARY_0_33, {"gpu_memory_utilization": 0.92}),
    (V0_PROFILE, {"gpu_memory_utilization": 0.9}),
    ("vLLM API server version 0.11.2", {"engine_version": "0.11.2"}),
    ("vLLM server version 0.20.2, serving model Qwen/Qwen2.5-3B-Instruct", {"engine_version": "0.20.2"}),
    ("Initializing a V1 LLM engine (v0.23.0) ...", {"engine_version": "0.23.0", "engine": "V1"}),
    ("Initializing a V0 LLM engine (v0.8.2) with config:...", {"engine_version": "0.8.2", "engine": "V0"}),
    ("Automatically detected platform rocm.", {"device": "rocm"}),
    (
        "Your device 'Tesla T4' (with compute capability 7.5) doesn't support torch.bfloat16. Falling back to float16.",
        {"gpu_name": "Tesla T4"},
    ),
    (
        (
            "Using configuration from "
            "/usr/lib/vllm/configs/E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json for MoE"
            " layer."
        ),
        {"gpu_name": "NVIDIA H200"},
    ),
    ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-93e5)", {"gpu_name": "NVIDIA A100-SXM4-80GB"}),
]


@pytest.mark.parametrize(("line", "expected"), CONDITIONS, ids=[line[:60] for line, _ in CONDITIONS])
def test_each_line_format_gives_its_conditions(line: str, expected: dict[str, object]) -> None:
    """A condition that has a line of its own is read from it."""
    log = read_startup_log(f"{line}\nAvailable KV cache memory: 0.59 GiB\n")
    for name, value in expected.items():
        reading = getattr(log, name)
        assert reading is not None, name
        assert reading.value == value, name


FAILURES = [
    (
        (
            "ValueError: To serve at least one request with the models's max seq len (32000), (1.10 GiB KV cache "
            "is needed, "
            "which is larger than the available KV cache memory (0.59 GiB).  Try increasing "
            "`gpu_memory_utilization` or "
            "decreasing `max_model_len` when initializing the engine."
        ),
        "max_model_len_needs_more_kv",
        {"max_model_len": 32000, "needed_gib": 1.1, "available_kv_gib": 0.59},
    ),
    (
        (
            "ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cache "
            "is needed, "
            "which is larger than the available KV cache memory (4.25 GiB). Based on the available memory, "
            "the estimated "
            "maximum model length is 99744. Try increasing `gpu_memory_utilization` (which also controls CPU "
            "memory on the "
            "CPU backend) or decreasing `max_model_len` when initializing the engine."
        ),
        "max_model_len_needs_more_kv",
        {"max_model_len": 100000, "needed_gib": 4.26, "available_kv_gib": 4.25, "estimated_model_len": 99744},
    ),
    (
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be "
            "stored in KV "
            "cache (2400). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine."
        ),
        "max_model_len_needs_more_kv",
        {"max_model_len": 8192, "kv_tokens": 2400},
    ),
    (
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing "
            "the engine."
        ),
        "no_memory_for_kv_cache",
        {},
    ),
    (
        (
            "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a "
            "single token. Try "
            "increasing `gpu_memory_utilization`."
        ),
        "no_memory_for_kv_cache",
        {},
    ),
    (
        (
            "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, "
            "71.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
        "gpu_memory_in_use",
        {"free_gib": 59.32, "gpu_total_gib": 79.15, "gpu_memory_utilization": 0.9, "requested_gib": 71.24},
    ),
    (
        (
            "ValueError: Free memory on device cuda:0 (59.32/79.15 GiB) on startup is less than desired GPU "
            "memory utilization"
            " (0.92, 72.82 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
        "gpu_memory_in_use",
        {"free_gib": 59.32, "gpu_total_gib": 79.15, "gpu_memory_utilization": 0.92, "requested_gib": 72.82},
    ),
    (
        (
            "AssertionError: Error in memory profiling. Initial free memory 38.2 GiB, current free memory "
            "40.1 GiB. This "
            "happens when other processes sharing the same container release GPU memory while vLLM is profiling."
        ),
        "memory_changed_while_profiling",
        {"free_gib": 38.2},
    ),
    (
        (
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (611). Each decode sequence "
            "requires one "
            "Mamba cache block, so CUDA graph capture cannot proceed."
        ),
        "sequences_exceed_state_blocks",
        {"max_num_seqs": 1024, "blocks": 611},
    ),
    (
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, "
            "Total number of "
            "attention heads (25) must be divisible by tensor parallel size (2)."
        ),
        "heads_not_divisible",
        {"heads": 25, "tensor_parallel_size": 2},
    ),
    (
        (
            "ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len "
            "(max_position_embeddings=40960.0 or model_max_length=None in model's config.json)."
        ),
        "longer_than_derived",
        {"max_model_len": 65536},
    ),
    (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.69 GiB. GPU 0 has a total capacity "
            "of 79.11 GiB"
        ),
        "out_of_memory",
        {"tried_gib": 1.69},
    ),
    ("RuntimeError: Engine core initialization failed. See root cause above.", "engine_did_not_start", {}),
]


@pytest.mark.parametrize(("line", "kind", "numbers"), FAILURES, ids=[line[:70] for line, _, _ in FAILURES])
def test_each_refusal_is_named_with_its_numbers(line: str, kind: str, numbers: dict[str, float]) -> None:
    """A refusal of the engine is found in a traceback, with the figures it gives."""
    log = read_startup_log(f"(EngineCore pid=9) ERROR 05-20 11:09:40 [core.py:1108] {line}\n")
    assert log.outcome == "failed"
    assert log.failure is not None
    assert log.failure.kind == kind
    assert dict(log.failure.numbers) == numbers


def test_the_encoders_graphs_are_not_the_models() -> None:
    """0.33 also prints a line for the graphs of the vision encoder, which is another figure."""
    log = read_startup_log(
        "Encoder graph capturing finished in 3 secs, took 0.40 GiB (12 graphs)\n"
        "Graph capturing finished in 15 secs, took 0.27 GiB\n"
    )
    assert log.cudagraph_gib is not None
    assert [reading.value for reading in log.cudagraph_gib.each] == [0.27]


@pytest.mark.parametrize(
    "line",
    [
        "Available KV cache memory: 10 6.15 GiB",
        "Available KV cache memory: 1.2.3 GiB",
        "Available KV cache memory: X GiB",
        "GPU KV cache size: 1,39,344 tokens",
        "GPU KV cache size: {num_tokens} tokens",
        "Model loading took GiB and seconds",
        "Maximum concurrency for 8,192 tokens per request: x",
    ],
)
def test_mangled_digits_are_not_a_figure(line: str) -> None:
    """A number that does not stand together, or is a placeholder, is left out rather than guessed."""
    with pytest.raises(LogNotUnderstood):
        read_startup_log(line)


def test_a_number_cut_by_the_end_of_the_paste_is_not_a_figure() -> None:
    """`Using max model len 655` may have been 65536: nothing behind it says that it ended."""
    assert read_startup_log("Available KV cache memory: 3.1 GiB\nUsing max model len 655").max_model_len is None
    with_end = read_startup_log("Available KV cache memory: 3.1 GiB\nUsing max model len 655\n")
    assert with_end.max_model_len is not None
    assert with_end.max_model_len.value == 655
