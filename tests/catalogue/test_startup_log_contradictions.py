"""A log that disagrees with itself is found out, and one that does not is left alone."""

import pytest

from service.catalogue.importers.startup_log import read_startup_log
from tests.catalogue.startup_log_texts import NAMES, log_text

CASES = [
    # 1,921,515 tokens are 14.66 requests of 131,072; 1,521,515 are not (0.33 prints the product).
    ("v0.33.0-one-gpu.log", "1,921,515 tokens", "1,521,515 tokens", "1521515 tokens are not 14.66 requests"),
    ("v0.33.0-one-gpu.log", "1,921,515 tokens", "2,921,515 tokens", "2921515 tokens are not 14.66 requests"),
    # 0.11: more tokens than the product cannot be, whatever the layers.
    ("v0.11.2-tp4.log", "1,391,344 tokens", "1,891,344 tokens", "1891344 tokens are not 169.84 requests"),
    ("v0.6.6-v0.log", "# GPU blocks: 28108", "# GPU blocks: 28208", "28208 blocks are not 54.9 requests"),
    ("v0.33.0-one-gpu.log", "for 131,072 tokens", "for 65,536 tokens", "max_model_len is 131072"),
    ("v0.33.0-one-gpu.log", "in use is 55.0 GiB", "in use is 54.0 GiB", "55 GiB available and 54 GiB in use"),
    ("v0.33.0-one-gpu.log", "(0.92, 72.85 GiB)", "(0.92, 75.23 GiB)", "0.92 of 79.19 GiB is not the 75.23 GiB"),
    ("v0.33.0-one-gpu.log", "3.34 GiB for peak", "5.34 GiB for peak", "does not leave 55 GiB"),
    ("v0.11.2-tp4.log", "16.96 GiB for weight", "15.96 GiB for weight", None),
    ("v0.11.2-tp4.log", "5.21 GiB for peak", "9.21 GiB for peak", "does not leave"),
    ("v0.6.6-v0.log", "peak memory takes 1.26GiB", "peak memory takes 2.26GiB", "does not leave 54.9 GiB"),
    ("v0.33.0-one-gpu.log", "Model loading took 13.72", "Model loading took 93.72", "weights take 93.72 GiB of a GPU"),
    (
        "v0.33.0-one-gpu.log",
        "'async_scheduling': True",
        "'gpu_memory_utilization': 0.8",
        "gpu_memory_utilization is 0.8 on line 7 and 0.92 on line 22",
    ),
    (
        "v0.33.0-one-gpu.log",
        "'async_scheduling': True",
        "'tensor_parallel_size': 2",
        "tensor_parallel_size is 1 on line 11 and 2 on line 7",
    ),
    (
        "v0.33.0-one-gpu.log",
        "(v0.33.0)",
        "(v0.31.0)",
        "version is 0.31.0 on line 11 and 0.33.0 on line 3",
    ),
    (
        "v0.11.2-tp4.log",
        "(Worker_TP0 pid=410) INFO 12-01 07:03:10 [gpu_model_runner.py:3338] Model loading took 16.9619",
        "(Worker_TP1 pid=411) INFO 12-01 07:03:10 [gpu_model_runner.py:3338] Model loading took 12.1000",
        "weights_gib of Worker_TP1 pid=411 is 12.1 and, on line 13, 16.9619",
    ),
]


@pytest.mark.parametrize(("name", "before", "after", "reason"), CASES, ids=[case[2][:50] for case in CASES])
def test_each_contradiction_is_named(name: str, before: str, after: str, reason: str | None) -> None:
    """One figure changed by hand makes the log contradict itself; a figure another line settles does not."""
    text = log_text(name)
    assert before in text
    contradictions = read_startup_log(text.replace(before, after)).contradictions
    if reason is None:
        assert contradictions == ()
    else:
        assert any(reason in contradiction for contradiction in contradictions), contradictions


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_log_has_none(name: str) -> None:
    """The logs as they are agree with themselves."""
    assert read_startup_log(log_text(name)).contradictions == ()


def test_hybrid_models_up_to_0_20_print_fewer_tokens_than_the_product() -> None:
    """0.19: 120,000 tokens at 20 requests of 32,768 is a fifth of the product: blocks shared by layer groups."""
    text = (
        "(EngineCore pid=1) INFO 03-01 10:00:00 [core.py:107] Initializing a V1 LLM engine (v{version}) with config: "
        "model='a/b', max_seq_len=32768, tensor_parallel_size=1, compilation_config={{}}\n"
        "(EngineCore pid=1) INFO 03-01 10:00:09 [kv_cache_utils.py:1305] GPU KV cache size: 120,000 tokens\n"
        "(EngineCore pid=1) INFO 03-01 10:00:09 [kv_cache_utils.py:1310] Maximum concurrency for 32,768 tokens per "
        "request: 20.00x\n"
    )
    assert read_startup_log(text.format(version="0.19.0")).contradictions == ()
    assert read_startup_log(text.format(version="0.20.1rc1.dev16")).contradictions == ()
    assert read_startup_log(text.format(version="0.21.0")).contradictions != ()


def test_two_servers_logging_into_one_file_are_noticed() -> None:
    """Arguments of one model and the engine of another do not belong together."""
    text = log_text("v0.33.0-one-gpu.log")
    mixed = text.replace("'model_tag': 'openai/gpt-oss-20b'", "'model_tag': 'openai/gpt-oss-120b'")
    assert any("model is" in each for each in read_startup_log(mixed).contradictions)
