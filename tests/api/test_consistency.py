"""An answer agrees with itself, its flags start what it describes, and its fixes work."""

from math import prod
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from service.sizing.engine.kv_dtypes import KV_CACHE_DTYPES
from tests.api.following import followed

# Published config.json of microsoft/phi-4, the fields that decide its sizes: 40 heads, 10 KV heads, and a vocabulary of
# 100,352 = 2^11 x 7^2, so that of the divisors of 40 only 1 and 2 divide all three.
PHI_4 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "torch_dtype": "bfloat16",
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "num_key_value_heads": 10,
    "vocab_size": 100352,
    "max_position_embeddings": 16384,
    "original_max_position_embeddings": 16384,
    "tie_word_embeddings": False,
}


def ask(client: TestClient[Litestar], **fields: Any) -> dict[str, Any]:
    """A plan request that is answered, of Qwen3 32B on an H100 unless it says otherwise."""
    question = {
        "model": "Qwen/Qwen3-32B",
        "workload": {"context_tokens": 4096},
        "hardware": {"gpus": ["h100-sxm"]},
        **fields,
    }
    response = client.post("/plan", json=question)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    "fields",
    [
        {"workload": {"context_tokens": 8192, "concurrent_sequences": 64}},
        {"model": "meta-llama/Llama-3.1-405B", "layout": {"tensor_parallel_size": 8, "pipeline_parallel_size": 4}},
        {"model": "deepseek-ai/DeepSeek-V3", "hardware": {"gpus": ["h200-sxm"]}},
        {"model": "Qwen/Qwen3-32B", "hardware": {"gpus": ["mi300x", "l4"]}, "engine": {"enforce_eager": True}},
    ],
)
def test_the_budget_adds_up(client: TestClient[Litestar], fields: dict[str, Any]) -> None:
    """usable - weights - working space = room, room - needed = free, and the sizes multiply to the count."""
    answer = ask(client, **fields)
    for plan in (answer["recommended"], *answer["alternatives"]):
        memory, layout = plan["memory"], plan["layout"]
        taken = memory["weights_bytes"] + memory["working_space_bytes"]
        assert memory["usable_bytes"] - taken == memory["kv_cache_room_bytes"]
        assert memory["kv_cache_room_bytes"] - memory["kv_cache_needed_bytes"] == memory["free_bytes"]
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        assert prod(layout[size] for size in sizes) == plan["gpu_count"]


@pytest.mark.parametrize("gpu", ["h100-sxm", "mi300x"])
@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_every_cache_type_is_answered(client: TestClient[Litestar], gpu: str, dtype: str) -> None:
    """A type that the engine knows and the model or card does not is a rejection, never a fault."""
    for model in ("Qwen/Qwen3-32B", "deepseek-ai/DeepSeek-V3"):
        answer = ask(client, model=model, kv_cache_dtype=dtype, hardware={"gpus": [gpu], "gpu_counts": [8]})
        assert (answer["recommended"] is None) == bool(answer["rejected"])


@pytest.mark.parametrize("dtype", ["fp8_ds_mla", "nvfp4_ds_mla"])
def test_formats_of_latent_attention_are_refused_elsewhere(client: TestClient[Litestar], dtype: str) -> None:
    """No backend of plain attention lists them (vLLM 0.33 `v1/attention/backends`), and no figure is given for them."""
    answer = ask(client, kv_cache_dtype=dtype)
    assert {each["code"] for each in answer["rejected"]} == {"no_attention_backend"}
    assert answer["model"]["kv_bytes_per_token"] is None


@pytest.mark.parametrize("tensor", [3, 4, 5, 8, 10, 20])
def test_the_sizes_a_fix_names_start(client: TestClient[Litestar], tensor: int) -> None:
    """What divides the heads may not divide the KV heads or the vocabulary: only sizes that divide all are named."""
    model = {"name": "phi-4", "config": PHI_4}
    refused = ask(client, model=model, layout={"tensor_parallel_size": tensor})["rejected"][0]
    assert refused["fix"] == "choose a tensor parallel size from 1, 2"
    for size in (1, 2):
        assert ask(client, model=model, layout={"tensor_parallel_size": size})["recommended"]


def test_a_length_beyond_the_model_is_put_right_by_the_flag(client: TestClient[Litestar]) -> None:
    """Qwen3 32B was made for 40,960 tokens; the conversation is shorter already."""
    refused = ask(client, engine={"max_model_len": 400_000})["rejected"][1]
    assert (refused["code"], refused["fix"]) == ("max_model_len_exceeds_model", "use --max-model-len 40960 or less")
    assert ask(client, engine={"max_model_len": 40_960})["recommended"]


def test_conversations_beyond_a_given_limit_wait(client: TestClient[Litestar]) -> None:
    """One sequence at a time gives the tokens a second of one, and the plan says that fifteen wait."""
    layout, crowd = {"tensor_parallel_size": 2}, {"context_tokens": 4096, "concurrent_sequences": 16}
    limited = ask(client, layout=layout, workload=crowd, engine={"max_num_seqs": 1})["recommended"]
    alone = ask(client, layout=layout, engine={"max_num_seqs": 1})["recommended"]
    assert limited["throughput"] == alone["throughput"]
    assert limited["capacity"] == alone["capacity"]
    waiting = "a copy runs 1 of its 16 conversations at once, as max_num_seqs says; the others wait"
    assert waiting in limited["warnings"]
    assert waiting not in alone["warnings"]


def test_raised_sequences_are_not_called_lowered(client: TestClient[Litestar]) -> None:
    """A hybrid asked for more than the default of 1,024 sequences on an H200 gets what was asked for."""
    plan = ask(
        client,
        model="ibm-granite/granite-4.0-h-small",
        workload={"context_tokens": 128, "concurrent_sequences": 1100},
        hardware={"gpus": ["h200-sxm"]},
        layout={"tensor_parallel_size": 8},
    )["recommended"]
    args = plan["engine"]["args"]
    assert args[args.index("--max-num-seqs") + 1] == "1100"
    assert not any("lower max_num_seqs" in warning for warning in plan["warnings"])


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("0.33.0", "v0.33.0"),
        ("v0.33.0", "v0.33.0"),
        ("0.33", "v0.33.0"),
        ("v0.8.5.post1", "v0.8.5.post1"),
        ("0.33.0rc1", "v0.33.0rc1"),
        ("0.33.0.dev1+g1234", "v0.33.0.dev1-g1234"),
        ("nightly", "nightly"),
        ("latest", "latest"),
    ],
)
def test_the_image_is_one_that_can_be_pulled(client: TestClient[Litestar], version: str, tag: str) -> None:
    """Releases are tagged with a v and three numbers; a tag holds letters, digits, dots, dashes and underscores."""
    plan = ask(client, layout={"tensor_parallel_size": 2}, engine={"version": version})["recommended"]
    assert f"vllm/vllm-openai:{tag} Qwen/Qwen3-32B" in plan["engine"]["docker"]


def test_utilisation_is_repeated_to_the_last_digit(client: TestClient[Litestar]) -> None:
    """A rounded share would be another one than the plan was made for."""
    plan = ask(client, layout={"tensor_parallel_size": 2}, engine={"gpu_memory_utilization": 0.9123456789})
    args = plan["recommended"]["engine"]["args"]
    assert args[args.index("--gpu-memory-utilization") + 1] == "0.9123456789"


def test_copies_over_nodes_add_up(client: TestClient[Litestar]) -> None:
    """Three copies of four GPUs on nodes of eight: two on the first, one on the second, which starts at the third."""
    layout = {"tensor_parallel_size": 4, "data_parallel_size": 3}
    lines = ask(client, layout=layout)["recommended"]["engine"]["command"].splitlines()
    assert len(lines) == 2
    assert "--data-parallel-size-local 2" in lines[0]
    assert "--data-parallel-size-local 1" in lines[1]
    assert "--data-parallel-start-rank 2" in lines[1]


def test_reasons_fit_the_layout(client: TestClient[Litestar]) -> None:
    """A forced pipeline on NVLink does not avoid a slow link, and copies of experts are not whole in themselves."""
    piped = ask(client, layout={"pipeline_parallel_size": 2})["recommended"]["reasons"]
    assert not any("without a fast link" in reason for reason in piped)
    experts = ask(client, model="Qwen/Qwen3-30B-A3B-Instruct-2507", layout={"data_parallel_size": 2})["recommended"]
    assert "2 copies share the load, their experts spread over all GPUs" in experts["reasons"]
    shared = ask(
        client,
        layout={"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
        hardware={"gpus": ["h100-sxm"], "gpus_per_node": 16},
    )["recommended"]["reasons"]
    assert not any("latent" in reason for reason in shared)


def test_a_window_as_long_as_the_context_never_slides(client: TestClient[Litestar]) -> None:
    """Phi-4-mini has windows of 262,144 tokens and a context of 131,072: every token adds 32 x 8 x 2 x 128 x 2 B."""
    config = PHI_4 | {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 131072,
        "sliding_window": 262144,
    }
    answer = ask(client, model={"name": "phi-4-mini", "config": config})
    assert answer["model"]["kv_bytes_per_token"] == 131_072
    assert answer["recommended"]["kv_cache"]["bytes_per_token_per_gpu"] == 131_072
    slides = ask(client, model={"name": "phi-4-mini", "config": config | {"sliding_window": 2047}})
    assert slides["model"]["kv_bytes_per_token"] == slides["recommended"]["kv_cache"]["bytes_per_token_per_gpu"] == 0


def test_a_shorter_conversation_named_as_a_fix_fits_as_often_as_asked(client: TestClient[Litestar]) -> None:
    """Two H100s hold little of a 70B model's cache: the fix names a length at which all four conversations fit."""
    fields = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "layout": {"tensor_parallel_size": 2},
        "assumptions": {"working_space_gib": 6},
    }
    crowd = {"context_tokens": 8192, "concurrent_sequences": 4}
    refused = ask(client, **fields, workload=crowd)["rejected"][0]
    assert refused["code"] == "cache_too_small"
    tokens = int(refused["fix"].split("at most ")[1].split()[0])
    assert ask(client, **fields, workload=crowd | {"context_tokens": tokens})["recommended"]


def test_copies_of_experts_are_put_right_where_no_tensor_size_is(client: TestClient[Litestar]) -> None:
    """Three copies spread experts 14,336 wide over three times the tensor ranks, which never divide it."""
    layout = {"tensor_parallel_size": 4, "data_parallel_size": 3}
    refused = ask(client, model="mistralai/Mixtral-8x7B-v0.1", layout=layout)["rejected"][0]
    assert "choose data_parallel_size 1 and a tensor parallel size from 2, 4, 8" in refused["fix"]


def test_what_joins_a_group_is_said_of_all_of_it(client: TestClient[Litestar]) -> None:
    """NVLink joins the eight GPUs of a node, not sixteen on two."""
    for tensor, said in ((8, "8 GPUs joined by nvlink"), (16, "16 GPUs, nvlink between some of them,")):
        plan = ask(client, layout={"tensor_parallel_size": tensor})["recommended"]
        assert any(said in reason for reason in plan["reasons"])


# A request with a setting that is far off, and what puts it right: the path of a field and its value.
FAR_OFF = [
    ({"engine": {"gpu_memory_utilization": 0.05}}, "use --gpu-memory-utilization 0.92", ("engine", {})),
    ({"engine": {"max_num_batched_tokens": 10_000_000}}, "leave --max-num-batched-tokens out", ("engine", {})),
    ({"engine": {"kv_cache_memory_bytes": 1}}, "use --kv-cache-memory-bytes {} or more", ("engine", None)),
    ({"engine": {"kv_cache_memory_bytes": 1 << 50}}, "use --kv-cache-memory-bytes {} or less", ("engine", None)),
    ({"assumptions": {"working_space_gib": 500}}, "leave assumptions.working_space_gib out", ("assumptions", {})),
    ({"assumptions": {"gpu_memory_gib": 4}}, "leave assumptions.gpu_memory_gib out", ("assumptions", {})),
    (
        {"workload": {"context_tokens": 4096, "concurrent_sequences": 5_000_000}},
        "ask for {} conversations or fewer",
        ("workload", None),
    ),
]


@pytest.mark.parametrize(
    "how", [{"layout": {"tensor_parallel_size": 2}}, {"hardware": {"gpus": ["h100-sxm"], "gpu_counts": [2]}}]
)
@pytest.mark.parametrize(("fields", "fix", "change"), FAR_OFF)
def test_a_setting_far_off_is_put_right_by_its_fix(
    client: TestClient[Litestar], how: dict[str, Any], fields: dict[str, Any], fix: str, change: tuple[str, Any]
) -> None:
    """Whatever the caller fixed that leaves no room: the rejection names a change, and with it the plan serves."""
    (refused,) = ask(client, **how, **fields)["rejected"]
    before, _, after = fix.partition("{}")
    named = refused["fix"].removeprefix(before).removesuffix(after)
    assert refused["fix"] == f"{before}{named}{after}"
    group, value = change
    if value is None:
        assert int(named) > 0
        (name,) = fields[group].keys() - {"context_tokens"}
        value = fields[group] | {name: int(named)}
    assert ask(client, **how, **fields | {group: value})["recommended"]


def test_the_size_of_the_cache_is_named_to_the_mebibyte(client: TestClient[Litestar]) -> None:
    """A little less than the least, or more than the most, is refused."""
    layout = {"tensor_parallel_size": 2}
    for given, step in ((1, -1), (1 << 50, 1)):
        (refused,) = ask(client, layout=layout, engine={"kv_cache_memory_bytes": given})["rejected"]
        size = int(refused["fix"].split()[2])
        beyond = {"kv_cache_memory_bytes": size + step * (2 << 20)}
        assert ask(client, layout=layout, engine=beyond)["recommended"] is None


def test_a_limit_shorter_than_the_conversations_is_to_be_raised(client: TestClient[Litestar]) -> None:
    """The caller's own limit is in the way, not the model's: both ways out serve."""
    (refused,) = ask(client, engine={"max_model_len": 1024}, layout={})["rejected"]
    assert refused["code"] == "context_too_long"
    assert refused["fix"] == "ask for at most 1024 tokens, or use --max-model-len 4096"
    assert ask(client, engine={"max_model_len": 4096}, layout={})["recommended"]
    assert ask(client, engine={"max_model_len": 1024}, layout={}, workload={"context_tokens": 1024})["recommended"]


def test_a_layout_wrong_in_several_ways_is_answered_with_one_that_serves(client: TestClient[Litestar]) -> None:
    """No single size puts it right: neither 4,096 stages nor as many tensor ranks suit 64 layers and 64 heads."""
    hopeless = {"tensor_parallel_size": 4096, "pipeline_parallel_size": 4096, "data_parallel_size": 4096}
    (refused,) = ask(client, layout=hopeless)["rejected"]
    assert refused["fix"].endswith("leave the layout out: 1 GPU would serve")
    assert ask(client)["recommended"]["gpu_count"] == 1


def test_a_crowd_that_no_count_serves_is_to_be_smaller(client: TestClient[Litestar]) -> None:
    """5,000 conversations of a 70B model: 12 TiB of cache. One GPU lacks room for the weights, four hold some."""
    crowd = {"context_tokens": 8192, "concurrent_sequences": 5000}
    asked = {"model": "meta-llama/Llama-3.1-70B-Instruct", "workload": crowd}
    answer = ask(client, **asked, hardware={"gpus": ["h100-sxm"], "gpu_counts": [1, 4]})
    one, four = answer["rejected"]
    assert one["fix"] == f"use 4 GPUs (tensor parallel size 4) and {four['fix']}"
    number = int(four["fix"].removeprefix("ask for ").removesuffix(" conversations or fewer"))
    hardware = {"gpus": ["h100-sxm"], "gpu_counts": [4]}
    assert ask(client, **asked | {"workload": crowd | {"concurrent_sequences": number}}, hardware=hardware)[
        "recommended"
    ]


def test_what_no_count_serves_is_said_to_want_more_memory(client: TestClient[Litestar]) -> None:
    """671 billion parameters in FP8 on cards of 24 GB: more than a fix looks at."""
    answer = ask(client, model="deepseek-ai/DeepSeek-V3", hardware={"gpus": ["l4"], "gpu_counts": [1]})
    (refused,) = answer["rejected"]
    assert refused["code"] in ("does_not_fit", "no_attention_backend")
    assert refused["fix"]


@pytest.mark.parametrize("node", [3, 5, 6, 7, 10, 12])
@pytest.mark.parametrize(
    "model", ["meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-405B", "deepseek-ai/DeepSeek-V3"]
)
def test_a_node_of_any_size_serves(client: TestClient[Litestar], model: str, node: int) -> None:
    """Where 64 or 128 heads do not split over a node, a pipeline or copies fill it, and no copy lies across nodes."""
    answer = ask(
        client,
        model=model,
        workload={"context_tokens": 8192, "concurrent_sequences": 8},
        hardware={"gpus": ["h200-sxm"], "gpus_per_node": node},
    )
    assert answer["recommended"]
    for plan in (answer["recommended"], *answer["alternatives"]):
        layout = plan["layout"]
        tensor = layout["tensor_parallel_size"]
        assert 128 % tensor == 0
        assert tensor <= node
        copy = tensor * layout["pipeline_parallel_size"]
        assert copy % node == 0 if copy > node else node // copy * plan["nodes"] >= layout["data_parallel_size"]
    counts = {plan["gpu_count"] for plan in (answer["recommended"], *answer["alternatives"])}
    assert any(count % node == 0 for count in counts)


def test_six_gpus_hold_what_four_do_not(client: TestClient[Litestar]) -> None:
    """256 conversations of 4,096 tokens of Qwen3 32B are 256 GiB of cache: six cards hold it, three stages of two."""
    hardware = {"gpus": ["h100-sxm"], "gpus_per_node": 6, "max_gpus": 6}
    answer = ask(client, workload={"context_tokens": 4096, "concurrent_sequences": 256}, hardware=hardware)
    layout = answer["recommended"]["layout"]
    assert answer["recommended"]["gpu_count"] == 6
    assert (layout["tensor_parallel_size"], layout["pipeline_parallel_size"], layout["data_parallel_size"]) == (2, 3, 1)
    assert answer["recommended"]["nodes"] == 1


BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("model", "tensor", "words"),
    [
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 1, None),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 2, "input_size_per_partition = 576 is not divisible by weight quantization"),
        ("Qwen/Qwen3-VL-32B-Instruct", 4, "input_size_per_partition = 288 is not divisible by weight quantization"),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", 8, "output_partition_size = 576 is not divisible by weight quantization"),
        ("Qwen/Qwen3-VL-4B-Instruct", 4, None),
        ("Qwen/Qwen3-VL-4B-Instruct", 8, "input_size_per_partition = 1216 is not divisible by weight quantization"),
    ],
)
def test_blocks_of_a_vision_tower_are_cut_as_the_engine_cuts_them(
    client: TestClient[Litestar], model: str, tensor: int, words: str | None
) -> None:
    """FP8 blocks without a list of what is left alone take in the tower, 1,152 wide; vLLM 0.33 says this, run."""
    config = client.get(f"/models/{model}").json()["config"] | {"quantization_config": BLOCKS}
    given = {"name": model, "config": config}
    layout = {"tensor_parallel_size": tensor}
    answer = ask(client, model=given, hardware={"gpus": ["h200-sxm"]}, layout=layout)
    if words is None:
        assert answer["recommended"]
        return
    (refused,) = answer["rejected"]
    assert refused["code"] == "quantization_block_cut"
    assert words in refused["engine_error"]
    for way, request in followed(
        {"model": given, "workload": {"context_tokens": 4096}, "layout": layout}, "h200-sxm", tensor, refused["fix"]
    ):
        assert client.post("/plan", json=request).json()["recommended"], way
