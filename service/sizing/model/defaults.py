"""What configuration classes fill in for absent fields, by `model_type`.

Only fields that published configurations leave out; sizes that every configuration gives have no default, so that a
missing one is named instead of guessed.

Source: transformers 5.20 `models/*/configuration_*.py`, vLLM 0.33 `transformers_utils/configs`, and the classes that
checkpoints bring along.
"""

from collections.abc import Mapping
from typing import Any

CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "apertus": {"max_position_embeddings": 65536},
    "arcee": {"max_position_embeddings": 4096},
    "bert": {"max_position_embeddings": 512, "type_vocab_size": 2},
    "cohere": {"max_position_embeddings": 8192},
    "cwm": {"max_position_embeddings": 131072, "sliding_window": 8192, "num_key_value_heads": 8, "head_dim": 128},
    "ernie4_5": {"max_position_embeddings": 131072, "num_key_value_heads": 2, "head_dim": 128},
    "ernie4_5_moe": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 4,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
    },
    "exaone": {"max_position_embeddings": 2048},
    "exaone4": {"max_position_embeddings": 2048, "sliding_window": 4096, "sliding_window_pattern": 4},
    "exaone_moe": {
        "max_position_embeddings": 2048,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "falcon": {"max_position_embeddings": 2048},
    "flex_olmo": {"max_position_embeddings": 4096},
    "gemma": {"max_position_embeddings": 8192, "num_key_value_heads": 16, "head_dim": 256},
    "glm": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    "glm4": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    "glm4_moe": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "partial_rotary_factor": 0.5,
    },
    "gpt2": {"n_positions": 1024},
    "gpt_bigcode": {"n_positions": 1024, "multi_query": True},
    "gpt_neox": {"max_position_embeddings": 2048, "attention_bias": True, "rotary_pct": 0.25},
    "gptj": {"n_positions": 2048, "rotary_dim": 64},
    "granite": {"max_position_embeddings": 2048},
    "granite_swa": {"max_position_embeddings": 8192, "num_key_value_heads": 4, "sliding_window": 128},
    "granitemoe": {"max_position_embeddings": 2048},
    "granitemoe_swa": {"max_position_embeddings": 2048, "sliding_window": 128},
    "granitemoeshared": {"max_position_embeddings": 2048},
    "helium": {"max_position_embeddings": 4096, "num_key_value_heads": 20, "head_dim": 128},
    "hunyuan_v1_dense": {"max_position_embeddings": 2048},
    "hunyuan_v1_moe": {"max_position_embeddings": 2048},
    "hyperclovax": {"max_position_embeddings": 2048},
    "jais2": {"max_position_embeddings": 8192, "attention_bias": True, "mlp_bias": True},
    "llama": {"max_position_embeddings": 2048},
    "minicpm3": {
        "max_position_embeddings": 32768,
        "q_lora_rank": 768,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
    },
    "minimax_m2": {"max_position_embeddings": 196608, "num_key_value_heads": 8, "head_dim": 128},
    "ministral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "ministral3": {"max_position_embeddings": 262144, "num_key_value_heads": 8, "head_dim": 128},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"max_position_embeddings": 131072, "num_key_value_heads": 8},
    "mpt": {"max_seq_len": 2048},
    "nemotron": {"max_position_embeddings": 4096, "partial_rotary_factor": 0.5},
    "olmo": {"max_position_embeddings": 2048},
    "olmo2": {"max_position_embeddings": 2048},
    "olmoe": {"max_position_embeddings": 4096, "num_key_value_heads": 16},
    "opt": {"max_position_embeddings": 2048},
    "persimmon": {"max_position_embeddings": 16384, "partial_rotary_factor": 0.5, "qk_layernorm": True},
    "phi": {"max_position_embeddings": 2048, "partial_rotary_factor": 0.5},
    "phi3": {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
    "phimoe": {"max_position_embeddings": 131072, "num_key_value_heads": 8},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096},
    "qwen2_moe": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 16,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
    },
    "qwen3": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
    },
    "qwen3_moe": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
    },
    "roberta": {"max_position_embeddings": 512, "type_vocab_size": 2},
    "seed_oss": {
        "max_position_embeddings": 524288,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
    },
    "smollm3": {"max_position_embeddings": 32768, "num_key_value_heads": 4},
    "stablelm": {"max_position_embeddings": 4096, "partial_rotary_factor": 0.25},
    "starcoder2": {"max_position_embeddings": 4096, "num_key_value_heads": 2, "use_bias": True},
    "xlm-roberta": {"max_position_embeddings": 512, "type_vocab_size": 2},
}
"""Fields that the class of a model type fills in."""
