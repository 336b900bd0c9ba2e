"""GPUs by their data sheets and models by their published configurations, for tests of the performance model."""

from functools import cache
from typing import Any

from service.sizing.hardware import Gpu, Link, Vendor
from service.sizing.layouts import Layout
from service.sizing.model.quantization.requantise import requantise
from service.sizing.model.reader import read_model
from service.sizing.model.shape import ModelShape
from service.sizing.performance import Replica
from service.sizing.quantities import GIB

TERA = 1e12


def gpu(slug: str, capability: tuple[int, int], bandwidth_gb: float, link: Link, link_gb: float, **tera: float) -> Gpu:
    """An NVIDIA card: rated GB/s of memory and link, rated TFLOP/s by type."""
    return Gpu(
        slug=slug,
        name=slug,
        vendor=Vendor.NVIDIA,
        architecture="",
        compute_capability=capability,
        memory_total_bytes=80 * GIB,
        memory_driver_bytes=None,
        memory_bandwidth_bytes_per_s=bandwidth_gb * 1e9,
        dense_flops={name: rate * TERA for name, rate in tera.items()},
        link=link,
        link_bandwidth_bytes_per_s=link_gb * 1e9,
        gpus_per_domain=8 if link is Link.NVLINK else 1,
        gpus_per_node=8,
        has_rules=True,
    )


GPUS = {
    each.slug: each
    for each in (
        gpu("h100-sxm", (9, 0), 3350, Link.NVLINK, 450, bf16=989, fp8=1979),
        gpu("h200-sxm", (9, 0), 4800, Link.NVLINK, 450, bf16=989, fp8=1979),
        gpu("b200-sxm", (10, 0), 7700, Link.NVLINK, 900, bf16=2250, fp8=4500, fp4=9000),
        gpu("b300-sxm", (10, 3), 7700, Link.NVLINK, 900, bf16=2250, fp8=4500, fp4=13500),
        gpu("a100-sxm4-80gb", (8, 0), 2039, Link.NVLINK, 300, bf16=312),
        gpu("l40s", (8, 9), 864, Link.PCIE, 32, bf16=362, fp8=733),
    )
}

LLAMA_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
GPT_OSS_120B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "dtype": "bfloat16",
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}
MINIMAX_M2_5: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "dtype": "bfloat16",
    "vocab_size": 200064,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "rotary_dim": 64,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "scoring_func": "sigmoid",
    "max_position_embeddings": 196608,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
    },
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
}
"""DeepSeek V3 before quantisation."""

DBRX = {
    "architectures": ["DbrxForCausalLM"],
    "model_type": "dbrx",
    "torch_dtype": "bfloat16",
    "vocab_size": 100352,
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "max_seq_len": 32768,
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
    "ffn_config": {"ffn_act_fn": {"name": "silu"}, "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    "tie_word_embeddings": False,
}
"""databricks/dbrx-instruct."""

CONFIGS = {
    "llama-70b": (LLAMA_70B, "fp8"),
    "llama-70b-bf16": (LLAMA_70B, "bf16"),
    "llama-70b-int4": (LLAMA_70B, "int4"),
    "gpt-oss-120b": (GPT_OSS_120B, "checkpoint"),
    "minimax-m2.5": (MINIMAX_M2_5, "checkpoint"),
    "deepseek-v3": (DEEPSEEK_V3, "bf16"),
    "dbrx": (DBRX, "checkpoint"),
}


@cache
def model(name: str) -> ModelShape:
    """A model of `CONFIGS`, read once: formulas remember by identity."""
    config, precision = CONFIGS[name]
    return read_model(name, requantise(config, precision))


def replica(name: str, card: str, layout: Layout | None = None, **changes: Any) -> Replica:
    """A deployment of a model on a card."""
    given: dict[str, Any] = {
        "model": model(name),
        "layout": layout or Layout(),
        "gpu": GPUS[card],
        "link": GPUS[card].link,
        "gpus_per_node": 8,
        "max_num_seqs": 1024,
        "cache_holds": 1024,
        "max_num_batched_tokens": 8192,
    }
    return Replica(**(given | changes))
