"""Dense decoders told apart by biases, norms, names and what each pipeline stage holds.

Source: vLLM 0.33 `model_executor/models/` (`llama.py`, `mistral.py`, `qwen2.py`, `qwen3.py`, `mimo.py`, `internlm2.py`,
`granite.py`, `nemotron.py`, `exaone.py`, `exaone4.py`, `orion.py`, `solar.py`, `ernie45.py`, `apertus.py`,
`hyperclovax.py`, `openpangu.py`, `glm4.py`, `stablelm.py`, `gemma.py`, `commandr.py`, `phi3.py`, `chatglm.py`,
`telechat2.py`, `step1.py`); the classes of vLLM 0.9 and 0.22 for architectures that later versions dropped
(`baichuan.py`, `phi3_small.py`, `qwen.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.families.llama import read, read_attention, reader
from service.sizing.model.families.recipe import HeadNorms, Names, Part, Recipe, Spelling
from service.sizing.model.families.windows import (
    dual_chunk_refusal,
    patterned_layers,
    periodic_layers,
    qwen_refusal,
    window_layers,
)
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

NORMALISER = Tensor("normalizer", TensorClass.OTHER, (Units(1),), buffer=True)
"""The factor on embeddings that Gemma's class registers."""

BAICHUAN_ROTARY_HIDDEN = 4096
"""Hidden size of the Baichuan model with rotary positions."""

GLM4V = "GLM4VForCausalLM"
"""ChatGLM's class with a tower in front."""

ATTENTION_BIAS = ("attention_bias", "bias")
EVERYWHERE = frozenset({Part.EMBEDDING, Part.NORM, Part.HEAD})
FUSED_QKV = ("qkv_proj",)
FUSED_GATE = ("gate_up_proj", "gate_up_proj", "down_proj")


def chatglm_sizes(source: Source) -> Source:
    """ChatGLM's fields: KV heads only of multi-query attention, and what its class fills in."""
    text = source.text
    if "vision_config" in source.root and source.architecture != GLM4V:
        raise source.refuse("vision_config", because="the text class does not read images")
    grouped = text.flag("multi_query_attention", default=False)
    heads = text.integer("num_attention_heads")
    kv_heads = text.integer("multi_query_group_num", default=1)
    return source.overridden(
        {
            "num_key_value_heads": kv_heads if grouped else heads,
            "layer_norm": not text.flag("rmsnorm", default=True),
            "post_layer_norm": text.flag("post_layer_norm", default=True),
        },
        spelled={"num_key_value_heads": "multi_query_group_num"},
    )


def step_sizes(source: Source) -> Source:
    """Step's KV heads: one where none are named."""
    groups = source.text.integer("num_attention_groups", "num_key_value_heads", default=1)
    return source.overridden({"num_key_value_heads": groups})


def half_width(source: Source) -> Source:
    """QWen's `intermediate_size` counts gate and up projections together."""
    both = source.text.integer("intermediate_size")
    if both % 2:
        raise source.invalid("intermediate_size", f"intermediate_size must be even, not {both}")
    return source.overridden({"intermediate_size": both // 2})


def activation_parameters(source: Source, path: str) -> tuple[Module, ...]:
    """The two learned numbers of the xIELU activation, and its two constants."""
    return (
        Tensor("xielu_alphas", TensorClass.MLP, (Units(2),)),
        Tensor("xielu_constants", TensorClass.MLP, (Units(2),), buffer=True),
    )


def post_norms(source: Source, path: str) -> tuple[Module, ...]:
    """Norms after attention and MLP, where the configuration asks for them."""
    hidden = source.text.integer("hidden_size")
    wanted = source.text.flag("use_post_norm", default=False)
    return (blocks.norm("post_norm1", hidden), blocks.norm("post_norm2", hidden)) if wanted else ()


def sandwich_norms(source: Source, path: str) -> tuple[Module, ...]:
    """Norms around the MLP, where the configuration asks for them."""
    hidden = source.text.integer("hidden_size")
    wanted = source.text.flag("sandwich_norm", default=False)
    return (blocks.norm("pre_mlp_layernorm", hidden), blocks.norm("post_mlp_layernorm", hidden)) if wanted else ()


def split_head_norms(source: Source, path: str) -> tuple[Module, ...]:
    """One norm weight for each element of each head, split by heads, where the configuration asks for them."""
    if not source.text.flag("use_qk_norm", default=False):
        return ()
    sizes = read_attention(source)
    return (
        Tensor("q_norm", TensorClass.NORM, (Units(sizes.heads, sizes.head_size),), split=True),
        Tensor("k_norm", TensorClass.NORM, (Units(sizes.kv_heads, sizes.head_size, replicated=True),), split=True),
    )


def has_sinks(source: Source) -> bool:
    """Whether a Granite model has attention sinks: those that mix in sliding layers do."""
    return source.text.flag("attention_sinks", default=source.text.texts("layer_types") is not None)


def sinks(source: Source, path: str) -> tuple[Module, ...]:
    """One sink logit a head."""
    if not has_sinks(source):
        return ()
    return (Tensor("sinks", TensorClass.ATTENTION, (Units(source.text.integer("num_attention_heads")),), split=True),)


def first_longrope_refusal(source: Source) -> str | None:
    """What transformers 5 says to the first name of Phi-3's long rope, for which it fills in no original length."""
    scaling = source.text.child("rope_scaling")
    if scaling is None or scaling.text("rope_type", "type", default="") != "su":
        return None
    if "original_max_position_embeddings" in scaling:
        return None
    return "Missing required keys in `rope_parameters` for 'rope_type'='longrope': {'original_max_position_embeddings'}"


LLAMA = Recipe(
    query_bias=ATTENTION_BIAS,
    output_bias=ATTENTION_BIAS,
    query_bias_field="qkv_bias",
    mlp_bias=("mlp_bias",),
    mixed_windows=True,
    may_encode=True,
)
MISTRAL = replace(LLAMA, refused=("ada_rms_norm_t_cond",))
QWEN2 = Recipe(
    spelling=Spelling(head_size=()),
    query_bias=True,
    head_norms=HeadNorms.HEAD,
    head_norms_field="qk_norm",
    may_encode=True,
    refusal=qwen_refusal,
)
QWEN3 = Recipe(
    query_bias=("attention_bias",),
    head_norms=HeadNorms.HEAD,
    prepare=window_layers,
    may_encode=True,
    refusal=qwen_refusal,
)
GRANITE = Recipe(
    query_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=("mlp_bias",), mixed_windows=True, extra=sinks
)
PHI3 = replace(LLAMA, names=Names(queries=FUSED_QKV, mlp=FUSED_GATE), refusal=first_longrope_refusal)
BAICHUAN = Recipe(spelling=Spelling(kv_heads=(), head_size=()), names=Names(queries=("W_pack",)), everywhere=EVERYWHERE)
CHATGLM = Recipe(
    spelling=Spelling(
        layers=("num_layers", "num_hidden_layers"),
        head_size=(),
        intermediate=("ffn_hidden_size",),
        vocabulary=("padded_vocab_size",),
        positions=("seq_length",),
    ),
    names=Names(
        layers="transformer.encoder.layers",
        embedding="transformer.embedding.word_embeddings",
        norm="transformer.encoder.final_layernorm",
        head="transformer.output_layer",
        attention="self_attention",
        queries=("query_key_value",),
        output="dense",
        mlp=("dense_h_to_4h", "dense_h_to_4h", "dense_4h_to_h"),
    ),
    query_bias=("add_bias_linear", "add_qkv_bias"),
    output_bias=("add_bias_linear",),
    mlp_bias=("add_bias_linear",),
    norm_bias=("layer_norm",),
    has_final_norm=("post_layer_norm",),
    partial=0.5,
    prepare=chatglm_sizes,
    handoff_tensors=1,
    everywhere=EVERYWHERE,
)

RECIPES: dict[str, Recipe] = {
    **dict.fromkeys(
        (
            "LlamaForCausalLM",
            "LLaMAForCausalLM",
            "AquilaForCausalLM",
            "AquilaModel",
            "IQuestCoderForCausalLM",
            "InternLM3ForCausalLM",
            "InternLMForCausalLM",
            "TeleChat3ForCausalLM",
            "TeleFLMForCausalLM",
            "XverseForCausalLM",
        ),
        LLAMA,
    ),
    **dict.fromkeys(("LlamaModel", "MistralModel"), replace(LLAMA, published_head=False)),
    "MistralForCausalLM": MISTRAL,
    "Ministral3ForCausalLM": MISTRAL,
    "Ernie4_5ForCausalLM": replace(LLAMA, output_bias=False, tied=True),
    "Qwen2ForCausalLM": replace(QWEN2, prepare=window_layers),
    "Qwen2Model": replace(QWEN2, prepare=window_layers, published_head=False),
    "Qwen3ForCausalLM": QWEN3,
    "MiMoForCausalLM": QWEN2,
    "Phi3ForCausalLM": PHI3,
    "SolarForCausalLM": Recipe(
        query_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=("mlp_bias",), quantised_embedding=False
    ),
    "NemotronForCausalLM": Recipe(
        names=Names(mlp=("up_proj", "down_proj")),
        query_bias=ATTENTION_BIAS,
        output_bias=ATTENTION_BIAS,
        mlp_bias=("mlp_bias",),
        norm_bias=True,
        quantised_embedding=False,
    ),
    "ExaoneForCausalLM": Recipe(
        spelling=Spelling(layers=("num_layers", "num_hidden_layers")),
        names=Names(
            layers="transformer.h",
            embedding="transformer.wte",
            norm="transformer.ln_f",
            attention="attn.attention",
            output="out_proj",
            mlp=("c_fc_0", "c_fc_1", "c_proj"),
        ),
        query_bias=ATTENTION_BIAS,
        output_bias=ATTENTION_BIAS,
        mlp_bias=("mlp_bias",),
        tied=True,
    ),
    "Exaone4ForCausalLM": Recipe(
        query_bias=ATTENTION_BIAS,
        output_bias=ATTENTION_BIAS,
        mlp_bias=("mlp_bias",),
        head_norms=HeadNorms.HEAD,
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        mixed_windows=True,
        prepare=patterned_layers,
    ),
    "OrionForCausalLM": Recipe(
        spelling=Spelling(head_size=()),
        norm_bias=True,
        quantised_embedding=False,
        handoff_tensors=1,
        everywhere=EVERYWHERE,
    ),
    "InternLM2ForCausalLM": Recipe(
        spelling=Spelling(head_size=()),
        names=Names(
            embedding="model.tok_embeddings",
            head="output",
            attention="attention",
            queries=("wqkv",),
            output="wo",
            feed_forward="feed_forward",
            mlp=("w1", "w3", "w2"),
        ),
        quantised_embedding=False,
        everywhere=EVERYWHERE,
    ),
    "ApertusForCausalLM": Recipe(
        names=Names(mlp=("up_proj", "down_proj")),
        query_bias=ATTENTION_BIAS,
        output_bias=ATTENTION_BIAS,
        query_bias_field="qkv_bias",
        mlp_bias=("mlp_bias",),
        head_norms=HeadNorms.HEAD,
        norms=("attention_layernorm", "feedforward_layernorm"),
        mixed_windows=True,
        may_encode=True,
        extra=activation_parameters,
    ),
    "HyperCLOVAXForCausalLM": Recipe(
        query_bias=("attention_bias",),
        output_bias=("attention_bias",),
        mlp_bias=("mlp_bias",),
        extra=post_norms,
        refusal=dual_chunk_refusal,
    ),
    "PanguEmbeddedForCausalLM": Recipe(
        query_bias=ATTENTION_BIAS,
        output_bias=ATTENTION_BIAS,
        query_bias_field="qkv_bias",
        mlp_bias=("mlp_bias",),
        may_encode=True,
        extra=sandwich_norms,
        refused=("interleaved_sliding_window", "param_sink_number", "n_routed_experts", "kv_lora_rank"),
    ),
    "Glm4ForCausalLM": Recipe(
        names=Names(mlp=FUSED_GATE),
        query_bias=("attention_bias",),
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "post_self_attn_layernorm",
            "post_mlp_layernorm",
        ),
    ),
    "StableLmForCausalLM": Recipe(
        spelling=Spelling(head_size=()),
        query_bias=("use_qkv_bias",),
        norm_bias=True,
        handoff_tensors=1,
        refused=("qk_layernorm",),
        everywhere=EVERYWHERE,
    ),
    "GemmaForCausalLM": Recipe(
        tied=True,
        quantised_embedding=False,
        buffers=(NORMALISER,),
        everywhere=EVERYWHERE,
    ),
    "Phi3SmallForCausalLM": Recipe(
        spelling=Spelling(head_size=(), intermediate=("ff_intermediate_size",)),
        names=Names(
            norm="model.final_layernorm",
            queries=("query_key_value",),
            output="dense",
            mlp=("up_proj", "up_proj", "down_proj"),
        ),
        query_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        tied=True,
        quantised_embedding=False,
        everywhere=EVERYWHERE,
    ),
    "Step1ForCausalLM": Recipe(
        spelling=Spelling(head_size=()),
        query_bias=("attention_bias",),
        output_bias=("attention_bias",),
        mlp_bias=("mlp_bias",),
        tied=True,
        rotary=False,
        prepare=step_sizes,
    ),
    "QWenLMHeadModel": Recipe(
        spelling=Spelling(
            layers=("num_hidden_layers", "n_layer"),
            heads=("num_attention_heads", "n_head"),
            kv_heads=(),
            head_size=(),
            positions=("max_position_embeddings", "n_positions"),
        ),
        names=Names(
            layers="transformer.h",
            embedding="transformer.wte",
            norm="transformer.ln_f",
            attention="attn",
            queries=("c_attn",),
            output="c_proj",
            mlp=("w2", "w1", "c_proj"),
        ),
        query_bias=True,
        prepare=half_width,
        everywhere=EVERYWHERE,
    ),
    "BaiChuanForCausalLM": BAICHUAN,
    "ChatGLMModel": CHATGLM,
    "ChatGLMForConditionalGeneration": CHATGLM,
    "CohereForCausalLM": Recipe(
        spelling=Spelling(positions=("model_max_length", "max_position_embeddings")),
        norms=("input_layernorm",),
        tied=True,
        reads_tied=False,
        quantised_embedding=False,
        extra=split_head_norms,
        everywhere=frozenset({Part.EMBEDDING, Part.NORM}),
    ),
    "TeleChat2ForCausalLM": Recipe(
        spelling=Spelling(
            layers=("n_layer", "num_hidden_layers"),
            heads=("n_head", "num_attention_heads"),
            intermediate=("ffn_hidden_size", "intermediate_size"),
            positions=("max_position_embeddings",),
        ),
        names=Names(
            layers="transformer.h",
            embedding="transformer.word_embeddings",
            norm="transformer.ln_f",
            attention="self_attention",
            queries=("query", "key_value"),
            output="dense",
        ),
        output_bias=True,
        down_bias=True,
    ),
}
RECIPES["TeleChatForCausalLM"] = RECIPES["TeleChat2ForCausalLM"]


def read_baichuan(source: Source) -> ModelShape:
    """Baichuan: rotary positions in the small model, ALiBi in the large one."""
    small = source.text.integer("hidden_size") == BAICHUAN_ROTARY_HIDDEN
    return read(source, replace(BAICHUAN, rotary=small))


def read_granite(source: Source, recipe: Recipe = GRANITE) -> ModelShape:
    """Granite: one rotary table for each base its layers name, none for base 0."""
    model = read(source, recipe)
    bases = source.text.items("layer_rope_theta")
    tables = len({base for base in bases if base}) if bases else 1
    return replace(model, rope_tables=model.rope_tables * tables, attention_sinks=has_sinks(source))


READERS: dict[str, Callable[[Source], ModelShape]] = {
    **{architecture: reader(recipe) for architecture, recipe in RECIPES.items()},
    "GraniteForCausalLM": read_granite,
    "GraniteSWAForCausalLM": partial(read_granite, recipe=replace(GRANITE, tied=True, prepare=periodic_layers(4, 0))),
    "BaichuanForCausalLM": read_baichuan,
}
