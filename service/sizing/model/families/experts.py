"""Decoders with routed experts in some or all layers.

Source: vLLM 0.33 `model_executor/models/` (`mixtral.py`, `qwen2_moe.py`, `qwen3_moe.py`, `olmoe.py`, `phimoe.py`,
`dbrx.py`, `glm4_moe.py`, `hy_v3.py`, `ernie45_moe.py`, `granitemoe.py`, `granitemoeshared.py`, `minimax_m2.py`,
`bailing_moe.py`, `exaone_moe.py`, `openpangu.py`, `param2moe.py`, `sarvam.py`); vLLM 0.23's `grok1.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.families.dense import (
    EVERYWHERE,
    RECIPES,
    has_sinks,
    sinks,
)
from service.sizing.model.families.expert_layers import (
    bailing,
    dbrx,
    ernie,
    exaone,
    glm4,
    granite,
    grok,
    hunyuan3,
    minimax,
    mixtral,
    olmoe,
    pangu,
    param2,
    qwen,
)
from service.sizing.model.families.llama import has_bias, read, read_attention, reader
from service.sizing.model.families.recipe import HeadNorms, Names, Recipe, Spelling
from service.sizing.model.families.windows import dual_chunk_refusal, switched_window, window_layers
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.quantities import round_up

VOCABULARY_PADDING = 64
"""Rows of a vocabulary table are padded to a multiple of this."""


def residual_mlp(source: Source, path: str) -> tuple[Module, ...]:
    """Grok 2's dense MLP beside the experts."""
    if not source.text.flag("residual_moe", default=False):
        return ()
    hidden, intermediate = source.text.integer("hidden_size"), source.text.integer("intermediate_size")
    return blocks.gated_mlp(source.quantization, f"{path}.mlp", hidden, intermediate)


def dbrx_sizes(source: Source) -> Source:
    """DBRX's nested fields, laid flat."""
    source = source.respelled(
        hidden_size=("d_model", "hidden_size"),
        num_attention_heads=("n_heads", "num_attention_heads"),
        num_hidden_layers=("n_layers", "num_hidden_layers"),
        max_position_embeddings=("max_seq_len", "max_position_embeddings"),
    )
    text = source.text
    attention, experts = text.child("attn_config"), text.child("ffn_config")
    if attention is None or experts is None:
        name = "attn_config" if attention is None else "ffn_config"
        raise source.invalid(name, f"{name} is missing: give an object")
    if text.flag("tie_word_embeddings", default=False):
        raise source.invalid("tie_word_embeddings", "tie_word_embeddings must be false: DBRX has a head of its own")
    return source.overridden(
        {
            "num_key_value_heads": attention.integer("kv_n_heads", default=1),
            "intermediate_size": experts.integer("ffn_hidden_size", default=3584),
            "num_local_experts": experts.integer("moe_num_experts", default=4),
            "num_experts_per_tok": experts.integer("moe_top_k", default=1),
            "max_position_embeddings": text.integer("max_position_embeddings", default=2048),
        },
        spelled={"num_key_value_heads": "attn_config.kv_n_heads"},
    )


def rotated_part(source: Source) -> Source:
    """A rotated part of the head that is given in elements."""
    text = source.text
    rotated = text.optional_integer("rotary_dim")
    rope = source.rope()
    if rotated is None or (rope and "partial_rotary_factor" in rope):
        return source
    size = read_attention(source).head_size
    if rotated > size:
        raise source.invalid("rotary_dim", f"rotary_dim ({rotated}) must be at most head_dim ({size})")
    return source.overridden({"partial_rotary_factor": rotated / size})


def original_context(source: Source) -> Source:
    """PhiMoE takes the context before scaling from its rotary settings."""
    rope = source.rope()
    original = rope.optional_integer("original_max_position_embeddings") if rope else None
    return source.overridden({"original_max_position_embeddings": original}) if original else source


def tensor_parallel_norms(source: Source, path: str) -> tuple[Module, ...]:
    """MiniMax M2's norms over all heads, split by heads."""
    sizes = read_attention(source)
    return (
        Tensor("q_norm", TensorClass.NORM, (Units(sizes.heads, sizes.head_size),), split=True),
        Tensor("k_norm", TensorClass.NORM, (Units(sizes.kv_heads, sizes.head_size, replicated=True),), split=True),
    )


def optional_head_norms(source: Source, path: str) -> tuple[Module, ...]:
    """Ling's norms on queries and keys, where wanted: layer norms unless the configuration says otherwise."""
    text = source.text
    if not text.flag("use_qk_norm", default=False):
        return ()
    size, bias = read_attention(source).head_size, not text.flag("use_rmsnorm", default=False)
    return (blocks.norm("query_layernorm", size, bias=bias), blocks.norm("key_layernorm", size, bias=bias))


def unpublished_biases(source: Source, path: str) -> tuple[Module, ...]:
    """Biases that PhiMoE's class builds even where the checkpoint has none."""
    if has_bias(source.text, PHIMOE.query_bias):
        return ()
    sizes, hidden = read_attention(source), source.text.integer("hidden_size")
    kv_heads = Units(sizes.kv_heads, sizes.head_size, replicated=True)
    rows = (Units(sizes.heads, sizes.head_size), kv_heads, kv_heads)
    return (
        Tensor("qkv_bias", TensorClass.ATTENTION, rows, split=True, counted=False),
        Tensor("o_bias", TensorClass.ATTENTION, (Units(hidden),), counted=False),
    )


QWEN_MOE = Recipe(query_bias=True, refusal=dual_chunk_refusal, everywhere=EVERYWHERE)
PHIMOE = Recipe(
    query_bias=("attention_bias",),
    output_bias=("attention_bias",),
    norm_bias=True,
    head_bias=("lm_head_bias",),
    reads_tied=False,
    quantised_embedding=False,
    quantised_head=False,
    prepare=original_context,
    extra=unpublished_biases,
    experts=mixtral,
    everywhere=EVERYWHERE,
)
GRANITE = Recipe(
    spelling=Spelling(head_size=()),
    quantised_embedding=False,
    mixed_windows=True,
    extra=sinks,
    experts=granite,
    everywhere=EVERYWHERE,
)
BAILING = Recipe(
    names=Names(embedding="model.word_embeddings", attention="attention", queries=("query_key_value",), output="dense"),
    query_bias=("use_bias", "use_qkv_bias"),
    output_bias=("use_bias",),
    mlp_bias=("use_bias",),
    prepare=rotated_part,
    extra=optional_head_norms,
    experts=bailing,
)
EXAONE = replace(RECIPES["Exaone4ForCausalLM"], norms=Recipe().norms, experts=exaone)
GROK = Recipe(
    names=Names(attention="attn"),
    norms=("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"),
    tied=True,
    extra=residual_mlp,
    experts=grok,
    everywhere=EVERYWHERE,
)

MIXTURES: dict[str, Recipe] = {
    "MixtralForCausalLM": Recipe(quantised_embedding=False, experts=mixtral, everywhere=EVERYWHERE),
    "Qwen2MoeForCausalLM": replace(
        QWEN_MOE,
        spelling=Spelling(head_size=()),
        prepare=window_layers,
        experts=partial(qwen, always_gated=True),
    ),
    "Qwen3MoeForCausalLM": replace(
        QWEN_MOE,
        query_bias=("attention_bias",),
        head_norms=HeadNorms.HEAD,
        prepare=switched_window,
        experts=partial(qwen, always_gated=False),
    ),
    "OlmoeForCausalLM": Recipe(
        spelling=Spelling(head_size=()),
        head_norms=HeadNorms.ALL_HEADS,
        reads_tied=False,
        experts=olmoe,
        everywhere=EVERYWHERE,
    ),
    "DbrxForCausalLM": Recipe(
        names=Names(
            layers="transformer.blocks",
            embedding="transformer.wte",
            norm="transformer.norm_f",
            attention="norm_attn_norm.attn",
            queries=("Wqkv",),
            output="out_proj",
        ),
        quantised_embedding=False,
        handoff_tensors=1,
        prepare=dbrx_sizes,
        experts=dbrx,
        everywhere=EVERYWHERE,
    ),
    "Glm4MoeForCausalLM": Recipe(
        query_bias=("attention_bias",),
        head_norms=HeadNorms.HEAD,
        head_norms_field="use_qk_norm",
        reads_tied=False,
        quantised_embedding=False,
        experts=glm4,
    ),
    "Ernie4_5_MoeForCausalLM": Recipe(
        query_bias=("use_bias",),
        mlp_bias=("use_bias",),
        tied=True,
        experts=ernie,
    ),
    "MiniMaxM2ForCausalLM": Recipe(
        query_bias=("attention_bias",),
        reads_tied=False,
        prepare=rotated_part,
        extra=tensor_parallel_norms,
        experts=minimax,
    ),
    **dict.fromkeys(("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM", "SarvamMoEForCausalLM"), BAILING),
    **dict.fromkeys(("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), EXAONE),
    "HYV3ForCausalLM": Recipe(
        head_norms=HeadNorms.HEAD,
        head_norms_field="qk_norm",
        quantised_embedding=False,
        experts=hunyuan3,
        everywhere=EVERYWHERE,
    ),
    "PanguProMoEV2ForCausalLM": replace(
        RECIPES["PanguEmbeddedForCausalLM"],
        refused=("interleaved_sliding_window", "param_sink_number", "kv_lora_rank"),
        experts=pangu,
    ),
    "Param2MoEForCausalLM": Recipe(
        query_bias=("use_qkv_bias",),
        output_bias=("use_bias",),
        head_norms=HeadNorms.HEAD,
        head_norms_field="use_qk_norm",
        experts=param2,
    ),
    **dict.fromkeys(("Grok1ForCausalLM", "Grok1ModelForCausalLM"), GROK),
}


def read_phimoe(source: Source) -> ModelShape:
    """PhiMoE: a head bias that the class builds even where the checkpoint has none."""
    model = read(source, PHIMOE)
    if source.text.flag("lm_head_bias", default=False):
        return model
    rows = (Units(round_up(model.vocab_size, VOCABULARY_PADDING)),)
    unpublished = Tensor("lm_head_bias", TensorClass.HEAD, rows, split=True, counted=False)
    return replace(model, every_stage=(*model.every_stage, unpublished))


def read_dbrx(source: Source) -> ModelShape:
    """DBRX: the engine does not find its nested number of experts and takes it for a dense model."""
    return replace(read(source, MIXTURES["DbrxForCausalLM"]), experts=0)


def read_granite(source: Source, recipe: Recipe = GRANITE) -> ModelShape:
    """Granite: attention sinks in models that mix in sliding layers."""
    return replace(read(source, recipe), attention_sinks=has_sinks(source))


READERS: dict[str, Callable[[Source], ModelShape]] = {
    **{architecture: reader(recipe) for architecture, recipe in MIXTURES.items()},
    "DbrxForCausalLM": read_dbrx,
    "PhiMoEForCausalLM": read_phimoe,
    "GraniteMoeForCausalLM": read_granite,
    "GraniteMoeSharedForCausalLM": partial(read_granite, recipe=replace(GRANITE, quantised_embedding=True)),
    "GraniteMoeSWAForCausalLM": partial(read_granite, recipe=replace(GRANITE, quantised_embedding=True)),
}
