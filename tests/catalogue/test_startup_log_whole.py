"""Whole startup logs, of several versions, as they are pasted."""

from dataclasses import fields

import pytest

from service.catalogue.importers.startup_log import (
    MEANING,
    Engine,
    Failure,
    LogNotUnderstood,
    Outcome,
    Reading,
    Readings,
    StartupLog,
    read_startup_log,
)
from tests.catalogue.startup_log_texts import NAMES, disguises, hard_wrapped, log_text


def values(log: StartupLog) -> dict[str, object]:
    """What a log says, without where it says it."""
    said: dict[str, object] = {}
    for each in fields(log):
        value = getattr(log, each.name)
        if isinstance(value, Reading):
            said[each.name] = (value.value, value.process)
        elif isinstance(value, Readings):
            said[each.name] = [(reading.value, reading.process) for reading in value.each]
        elif isinstance(value, Failure):
            said[each.name] = (value.kind, value.numbers)
        elif each.name not in ("first_line", "last_line", "notes"):
            said[each.name] = value
    return said


def conditions(log: StartupLog) -> dict[str, object]:
    """The conditions of a log that it states, by name."""
    return {each.name: value.value for each in fields(log) if isinstance(value := getattr(log, each.name), Reading)}


def test_v0_log_of_0_6() -> None:
    """0.6.6, engine V0: blocks instead of tokens; 28,108 blocks x 16 / 8,192 = 54.90."""
    log = read_startup_log(log_text("v0.6.6-v0.log"))
    assert conditions(log) == {
        "engine_version": "0.6.6.post1",
        "engine": Engine.V0,
        "device": "cuda",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "dtype": "bfloat16",
        "quantization": "none",
        "kv_cache_dtype": "auto",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "gpu_memory_utilization": 0.9,
        "max_model_len": 8192,
        "enforce_eager": False,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "speculative": "none",
        "enable_lora": False,
        "cpu_offload_gib": 0.0,
    }
    assert log.outcome is Outcome.STARTED
    assert log.gpu_blocks is not None
    assert log.gpu_blocks.low == 28108
    assert log.weights_gib is not None
    assert log.weights_gib.low == 14.9888
    assert log.available_kv_gib is not None
    assert log.available_kv_gib.low == 54.9
    assert {"max_num_seqs", "max_num_batched_tokens", "data_parallel_size"} <= set(log.defaults)
    assert log.missing == ("gpu_name",)
    assert log.contradictions == ()


def test_v1_log_of_0_8_with_two_ranks() -> None:
    """0.8.5, engine V1, tensor parallel 2: each rank's cache is printed by the engine, unlabelled, and they differ."""
    log = read_startup_log(log_text("v0.8.5-v1-tp2.log"))
    assert log.model is not None
    assert log.model.value == "Qwen/Qwen2.5-32B-Instruct"
    assert log.engine is not None
    assert log.engine.value is Engine.V1
    assert log.kv_tokens is not None
    assert (log.kv_tokens.low, log.kv_tokens.high, log.kv_tokens.agree) == (270480, 270832, False)
    assert log.weights_gib is not None
    assert log.weights_gib.agree
    assert {reading.process for reading in log.weights_gib.each} == {
        "VllmWorker rank=0 pid=4127",
        "VllmWorker rank=1 pid=4128",
    }
    assert log.cudagraph_gib is not None
    assert (log.cudagraph_gib.low, log.cudagraph_gib.high) == (0.89, 0.91)
    assert log.missing == ("gpu_name", "gpu_total_gib", "available_kv_gib")
    assert log.contradictions == ()


def test_log_of_0_11_with_four_workers() -> None:
    """0.11.2, tensor parallel 4: 128.62 - 16.96 - 5.21 - 0.30 = 106.15; 1,391,344 / 8,192 = 169.84."""
    log = read_startup_log(log_text("v0.11.2-tp4.log"))
    assert log.quantization is not None
    assert log.quantization.value == "compressed-tensors"
    assert log.gpu_total_gib is not None
    assert log.gpu_total_gib.low == 139.8
    assert log.weights_gib is not None
    assert [reading.process for reading in log.weights_gib.each] == [
        f"Worker_TP{rank} pid={410 + rank}" for rank in (2, 0, 3, 1)
    ]
    assert log.non_torch_gib is not None
    assert (log.non_torch_gib.low, log.non_torch_gib.high) == (0.3, 0.31)
    assert log.missing == ("gpu_name",)
    assert log.contradictions == ()


def test_log_of_0_33() -> None:
    """0.33.0: 0.92 x 79.19 = 72.85; 72.85 - 14.51 - 3.34 = 55.00; 14.66 x 131,072 = 1,921,515; the card "
    "from a file name."""
    log = read_startup_log(log_text("v0.33.0-one-gpu.log"))
    assert log.gpu_name is not None
    assert log.gpu_name.value == "NVIDIA H100 80GB HBM3"
    assert log.quantization is not None
    assert log.quantization.value == "gpt_oss_mxfp4"
    assert log.max_num_seqs is not None
    assert (log.max_num_seqs.value, log.max_num_seqs.line) == (256, 7)
    assert "max_num_batched_tokens" in log.defaults
    assert "enable_expert_parallel" in log.defaults
    assert log.other_arguments == (("async_scheduling", "True"),)
    assert log.missing == ()
    assert log.contradictions == ()
    assert "***" not in repr(log)


def test_log_of_a_refusal() -> None:
    """0.20.2: the engine wanted 1.1 GiB of cache and had 0.59; the generic failure around it does not hide that."""
    log = read_startup_log(log_text("v0.20.2-needs-more-cache.log"))
    assert log.outcome is Outcome.FAILED
    assert log.failure is not None
    assert log.failure.kind == "max_model_len_needs_more_kv"
    assert dict(log.failure.numbers)["estimated_model_len"] == 17184
    assert log.missing == ("gpu_name", "gpu_total_gib", "kv_tokens")


@pytest.mark.parametrize("name", NAMES)
def test_no_disguise_changes_what_a_log_says(name: str) -> None:
    """Wrapping at any column, quoting, colours, containers and JSON leave every value and every process as it was."""
    text = log_text(name)
    plain = values(read_startup_log(text))
    for disguise, disguised in disguises(text):
        assert values(read_startup_log(disguised)) == plain, disguise


@pytest.mark.parametrize("name", NAMES)
def test_every_value_stands_on_the_line_it_names(name: str) -> None:
    """A reading's line holds its number."""
    text = log_text(name)
    lines = text.split("\n")
    log = read_startup_log(text)
    for each in fields(log):
        value = getattr(log, each.name)
        for reading in value.each if isinstance(value, Readings) else ():
            digits = repr(reading.value).removesuffix(".0")
            assert digits in lines[reading.line - 1].replace(",", ""), each.name


def test_bare_messages_without_any_prefix() -> None:
    """People paste the messages alone."""
    log = read_startup_log("Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens")
    assert log.kv_tokens is not None
    assert log.kv_tokens.low == 178880
    assert log.engine is not None
    assert log.engine.value is Engine.V1
    assert "engine_version" in log.missing
    assert set(log.missing) <= set(MEANING)


def test_ray_prefixes_and_repeats() -> None:
    """Ray labels its workers with their node, and folds lines they repeat."""
    log = read_startup_log(
        "INFO 01-30 11:53:52 model_runner.py:1115] Loading model weights took 7.5100 GB\n"
        "(RayWorkerWrapper pid=263, ip=10.0.16.95) INFO 01-30 11:53:53 model_runner.py:1115] Loading model "
        "weights took "
        "7.5200 GB [repeated 6x across cluster]\n"
        "INFO 01-30 11:54:11 distributed_gpu_executor.py:57] # GPU blocks: 21031, # CPU blocks: 2048\n"
    )
    assert log.weights_gib is not None
    assert [(reading.value, reading.process) for reading in log.weights_gib.each] == [
        (7.51, ""),
        (7.52, "RayWorkerWrapper pid=263, ip=10.0.16.95"),
    ]


def test_data_parallel_engines_are_one_startup() -> None:
    """Two engines of one deployment introduce themselves; each has its own cache."""
    engine = (
        "({name} pid={pid}) INFO 01-12 06:15:17 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: "
        "model='Qwen/Qwen2.5-0.5B-Instruct', dtype=torch.float16, max_seq_len=32768, tensor_parallel_size=1, "
        "pipeline_parallel_size=1, data_parallel_size=2, quantization=None, compilation_config={{}}\n"
    )
    cache = "({name} pid={pid}) INFO 01-12 06:16:00 [kv_cache_utils.py:1087] GPU KV cache size: {tokens} tokens\n"
    ranks = [{"name": f"EngineCore_DP{rank}", "pid": 100 + rank, "tokens": f"938,5{rank}4"} for rank in range(2)]
    text = "".join(engine.format(**rank) for rank in ranks) + "".join(cache.format(**rank) for rank in ranks)
    log = read_startup_log(text)
    assert log.startups == 1
    assert log.kv_tokens is not None
    assert (log.kv_tokens.low, log.kv_tokens.high) == (938504, 938514)


def test_before_0_11_the_arguments_alone_count_the_engines() -> None:
    """Each engine's configuration leaves the data parallel size out; both belong to the arguments above them."""
    arguments = (
        "(APIServer pid=1) INFO 09-01 10:00:01 [utils.py:326] non-default args: {'model': 'Qwen/Qwen3-30B-A3B', "
        "'max_model_len': 32768, 'data_parallel_size': 2, 'enable_expert_parallel': True, "
        "'gpu_memory_utilization': 0.85}\n"
    )
    engine = (
        "(EngineCore_{rank} pid=7{rank}) INFO 09-01 10:00:10 [core.py:74] Initializing a V1 LLM engine (v0.10.1.1) "
        "with config: model='Qwen/Qwen3-30B-A3B', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1, "
        "pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto\n"
    )
    cache = (
        "(EngineCore_{rank} pid=7{rank}) INFO 09-01 10:01:31 [kv_cache_utils.py:849] GPU KV cache size: "
        "345,1{rank}2 tokens\n"
    )
    log = read_startup_log(arguments + "".join(line.format(rank=rank) for line in (engine, cache) for rank in range(2)))
    assert log.startups == 1
    assert log.data_parallel_size is not None
    assert log.data_parallel_size.value == 2
    assert log.enable_expert_parallel is not None
    assert log.gpu_memory_utilization is not None
    assert log.gpu_memory_utilization.value == 0.85
    assert log.kv_tokens is not None
    assert (log.kv_tokens.low, log.kv_tokens.high) == (345102, 345112)


def test_of_several_startups_the_last_complete_one_is_read() -> None:
    """Two complete logs and one that failed, in one paste: the second complete one counts, and a note says so."""
    first, second = log_text("v0.11.2-tp4.log"), log_text("v0.33.0-one-gpu.log")
    log = read_startup_log(first + second + log_text("v0.20.2-needs-more-cache.log"))
    assert log.startups == 3
    assert log.engine_version is not None
    assert log.engine_version.value == "0.33.0"
    assert values(log) == {**values(read_startup_log(second)), "startups": 3}
    assert log.first_line == first.count("\n") + 3, "the line of the banner that names the version"
    assert log.notes
    assert "3 startups" in log.notes[0]


def test_a_restart_of_the_engine_alone_is_another_startup() -> None:
    """A loop over configurations prints no banner: the engine introducing itself again is the border."""
    text = log_text("v0.33.0-one-gpu.log")
    engine_on = text[text.index("(EngineCore pid=214)") :]
    other = engine_on.replace("pid=214", "pid=999").replace("1,921,515 tokens", "1,921,000 tokens")
    log = read_startup_log(text + other)
    assert log.startups == 2
    assert log.kv_tokens is not None
    assert [reading.value for reading in log.kv_tokens.each] == [1921000]
    assert "max_num_seqs" in log.missing


def test_if_none_is_complete_the_last_is_read() -> None:
    """A refusal alone is still an answer."""
    text = log_text("v0.20.2-needs-more-cache.log")
    log = read_startup_log(text + text)
    assert log.startups == 2
    assert log.first_line == text.count("\n") + 1


def test_a_number_broken_where_the_paste_does_not_wrap_is_left_out() -> None:
    """`106.` at the end of a short line and `15 GiB` on the next need not belong together."""
    text = log_text("v0.11.2-tp4.log").replace("memory: 106.15 GiB", "memory: 106.\n15 GiB")
    log = read_startup_log(text)
    assert log.available_kv_gib is None
    assert "available_kv_gib" in log.missing


def test_a_number_broken_at_the_width_of_the_paste_is_one_number() -> None:
    """A terminal breaks inside numbers; lines of one length show that it did."""
    text = log_text("v0.11.2-tp4.log").replace("\r", "")
    column = max(line.index("106.15") for line in text.split("\n") if "Available KV" in line) + 3
    log = read_startup_log(hard_wrapped(text, column))
    assert log.available_kv_gib is not None
    assert log.available_kv_gib.low == 106.15


def test_elided_arguments_say_nothing_about_defaults() -> None:
    """Where a person cut the list of arguments, what is absent from it is unknown, not default."""
    text = log_text("v0.33.0-one-gpu.log")
    assert "enable_expert_parallel" in read_startup_log(text).defaults
    log = read_startup_log(text.replace("'max_num_seqs': 256, ", "... "))
    assert log.defaults == ()
    assert {"max_num_seqs", "enable_expert_parallel"} <= set(log.missing)


def test_secrets_are_not_kept() -> None:
    """An API key among the arguments, which old versions print, appears nowhere in what is read."""
    text = log_text("v0.33.0-one-gpu.log").replace("'api_key': '***'", "'api_key': 'sk-123456'")
    assert "sk-123456" not in repr(read_startup_log(text))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("Hello, world", "no line of a vLLM startup"),
        ("[2025-02-19 16:39:11 TP0] max_total_num_tokens=367404, chunked_prefill_size=8192", "SGLang"),
        ("llama_model_loader: loaded meta data with 33 key-value pairs", "llama.cpp"),
        ("\n" * 600_000, "more than 500,000 lines"),
    ],
)
def test_other_texts_are_refused_by_name(text: str, word: str) -> None:
    """What is not a vLLM startup log is said to be something else."""
    with pytest.raises(LogNotUnderstood, match=word):
        read_startup_log(text)
