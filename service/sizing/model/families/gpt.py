"""Decoders of the GPT-2 line: learned positions or ALiBi, layer norms, MLPs without a gate, weights on every stage.

Source: vLLM 0.33 `model_executor/models/` (`gpt2.py`, `gpt_j.py`, `opt.py`, `bloom.py`, `falcon.py`); transformers 5.20
`gpt_bigcode`, `gpt_neox`, `persimmon` for what vLLM runs through its Transformers backend; the classes of vLLM 0.22 and
0.27 for architectures that later versions dropped (`jais.py`, `mpt.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model.families.dense import EVERYWHERE
from service.sizing.model.families.llama import even_head_size, read, reader
from service.sizing.model.families.recipe import HeadNorms, Names, Recipe, Spelling
from service.sizing.model.families.transformers_backend import TRANSFORMERS
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Embedding, Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

PLAIN_WIDTH = 4
"""Width of an MLP, in hidden sizes, where none is given."""

OPT_POSITION_OFFSET = 2
"""Rows that OPT's table of positions has beyond its context."""

GPT2_REFUSED = ("add_cross_attention", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
"""Flags of GPT-2 that the engine's class asserts to be off."""

FALCON_40B_HIDDEN = 8192
"""Hidden size that the old class of Falcon takes for the new decoder."""


def position_table(rows: int, hidden: int) -> Tensor:
    """Learned positions, whole on every rank."""
    return Tensor("wpe", TensorClass.POSITIONS, (Units(rows),), hidden)


def gpt2_sizes(source: Source) -> Source:
    """GPT-2's fields under today's names."""
    text = source.text
    given = [name for name in GPT2_REFUSED if text.flag(name, default=False)]
    if given:
        raise source.refuse(*given, because=f"{', '.join(given)} is not supported by the engine's class")
    source = source.respelled(
        hidden_size=("n_embd", "hidden_size"),
        num_attention_heads=("n_head", "num_attention_heads"),
        num_hidden_layers=("n_layer", "num_hidden_layers"),
    )
    width = source.text.integer("n_inner", default=PLAIN_WIDTH * source.text.integer("hidden_size"))
    return source.overridden({"intermediate_size": width})


def gptj_sizes(source: Source) -> Source:
    """GPT-J's fields under today's names."""
    source = gpt2_sizes(source)
    text = source.text
    size = even_head_size(source, text.integer("num_attention_heads"))
    rotated = text.integer("rotary_dim")
    if rotated > size:
        raise source.invalid("rotary_dim", f"rotary_dim must be at most the head size {size}, not {rotated}")
    if text.flag("tie_word_embeddings", default=False):
        raise source.invalid("tie_word_embeddings", "tie_word_embeddings must be false: GPT-J has a head of its own")
    return source.overridden({"partial_rotary_factor": rotated / size})


def bloom_sizes(source: Source) -> Source:
    """BLOOM's fields under today's names."""
    source = source.respelled(
        hidden_size=("n_embed", "hidden_size"),
        num_attention_heads=("n_head", "num_attention_heads"),
        num_hidden_layers=("n_layer", "num_hidden_layers"),
    )
    return source.overridden({"intermediate_size": PLAIN_WIDTH * source.text.integer("hidden_size")})


def falcon_sizes(source: Source) -> Source:
    """Falcon's fields under today's names: the new decoder groups KV heads, the old one has one for all or for each."""
    source = source.respelled(
        hidden_size=("hidden_size", "n_embed"),
        num_attention_heads=("num_attention_heads", "n_head"),
        num_hidden_layers=("num_hidden_layers", "n_layer"),
        num_key_value_heads=("num_kv_heads", "n_head_kv"),
    )
    text = source.text
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    grouped = text.flag("new_decoder_architecture", default=False)
    if source.model_type.startswith("RefinedWeb"):
        grouped = grouped or hidden == FALCON_40B_HIDDEN
    kv_heads = text.integer("num_key_value_heads", default=heads)
    shared = text.flag("multi_query", default=True)
    return source.overridden(
        {
            "num_key_value_heads": kv_heads if grouped else 1 if shared else heads,
            "new_decoder_architecture": grouped,
            "intermediate_size": PLAIN_WIDTH * hidden,
        }
    )


def mpt_sizes(source: Source) -> Source:
    """MPT's fields under today's names."""
    source = source.respelled(
        hidden_size=("d_model",), num_attention_heads=("n_heads",), num_hidden_layers=("n_layers",)
    )
    text = source.text
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    attention = text.child("attn_config") or Fields({}, "attn_config")
    if attention.flag("qk_ln", default=False):
        raise source.refuse(
            "attn_config.qk_ln", because="attn_config.qk_ln (norms on queries and keys) is not understood"
        )
    if not text.flag("no_bias", default=True):
        raise source.refuse("no_bias", because="no_bias false (biases) is not understood")
    kind = attention.text("attn_type", default="multihead_attention")
    kv_heads = attention.integer("kv_n_heads", default=1 if kind == "multiquery_attention" else heads)
    return source.overridden(
        {
            "num_key_value_heads": kv_heads,
            "intermediate_size": text.integer("expansion_ratio", default=4) * hidden,
        },
        spelled={"num_key_value_heads": "attn_config.kv_n_heads"},
    )


GPT2 = Recipe(
    spelling=Spelling(kv_heads=(), head_size=()),
    names=Names(
        layers="transformer.h",
        embedding="transformer.wte",
        norm="transformer.ln_f",
        attention="attn",
        queries=("c_attn",),
        output="c_proj",
        mlp=("c_fc", "c_proj"),
    ),
    query_bias=True,
    output_bias=True,
    mlp_bias=True,
    norms=("ln_1", "ln_2"),
    norm_bias=True,
    tied=True,
    rotary=False,
    handoff_tensors=1,
    prepare=gpt2_sizes,
    everywhere=EVERYWHERE,
)
GPTJ = replace(
    GPT2,
    spelling=Spelling(kv_heads=(), head_size=(), positions=("n_positions", "max_position_embeddings")),
    names=replace(GPT2.names, queries=("q_proj", "k_proj", "v_proj"), output="out_proj", mlp=("fc_in", "fc_out")),
    query_bias=False,
    output_bias=False,
    norms=("ln_1",),
    head_bias=True,
    tied=False,
    rotary=True,
    quantised_embedding=False,
    prepare=gptj_sizes,
)
OPT = replace(
    GPT2,
    spelling=Spelling(kv_heads=(), head_size=(), intermediate=("ffn_dim",)),
    names=Names(
        layers="model.decoder.layers",
        embedding="model.decoder.embed_tokens",
        norm="model.decoder.final_layer_norm",
        output="out_proj",
        feed_forward="",
        mlp=("fc1", "fc2"),
    ),
    query_bias=("enable_bias",),
    output_bias=("enable_bias",),
    mlp_bias=("enable_bias",),
    quantised_embedding=False,
    quantised_head=False,
    prepare=None,
)
BLOOM = replace(
    GPT2,
    names=Names(
        layers="transformer.h",
        embedding="transformer.word_embeddings",
        norm="transformer.ln_f",
        attention="self_attention",
        queries=("query_key_value",),
        output="dense",
        mlp=("dense_h_to_4h", "dense_4h_to_h"),
    ),
    quantised_embedding=False,
    quantised_head=False,
    prepare=bloom_sizes,
)
FALCON = replace(
    GPT2,
    spelling=Spelling(head_size=()),
    names=BLOOM.names,
    query_bias=("bias",),
    output_bias=("bias",),
    mlp_bias=("bias",),
    rotary=True,
    windows=False,
    quantised_embedding=False,
    prepare=falcon_sizes,
)
MPT = replace(
    GPT2,
    spelling=Spelling(head_size=()),
    names=Names(
        layers="transformer.blocks",
        embedding="transformer.wte",
        norm="transformer.norm_f",
        attention="attn",
        queries=("Wqkv",),
        output="out_proj",
        feed_forward="ffn",
        mlp=("up_proj", "down_proj"),
    ),
    query_bias=False,
    output_bias=False,
    mlp_bias=False,
    norms=("norm_1", "norm_2"),
    norm_bias=False,
    quantised_embedding=False,
    quantised_head=False,
    prepare=mpt_sizes,
)
BIGCODE = replace(
    GPT2, spelling=Spelling(head_size=()), transformers=True, mixed_windows=True, everywhere=frozenset(), prepare=None
)
PERSIMMON = replace(
    TRANSFORMERS,
    spelling=Spelling(kv_heads=(), head_size=()),
    names=Names(
        norm="model.final_layernorm",
        queries=("query_key_value",),
        output="dense",
        mlp=("dense_h_to_4h", "dense_4h_to_h"),
    ),
    query_bias=True,
    output_bias=True,
    mlp_bias=True,
    head_norms=HeadNorms.HEAD,
    head_norms_field="qk_layernorm",
    head_norm_bias=True,
    norm_bias=True,
)

OPT_DEFAULTS: Mapping[str, Any] = {
    "enable_bias": True,
    "do_layer_norm_before": True,
    "layer_norm_elementwise_affine": True,
}


def read_gpt2(source: Source) -> ModelShape:
    """GPT-2: learned positions on every stage."""
    model = read(source, GPT2)
    rows = source.text.integer("n_positions", "max_position_embeddings", default=1024)
    return replace(model, every_stage=(*model.every_stage, position_table(rows, model.hidden_size)))


def read_jais(source: Source) -> ModelShape:
    """Jais: a gate under SwiGLU, and learned positions unless ALiBi takes their place."""
    text = source.text
    gated = text.text("activation_function", default="gelu") == "swiglu"
    recipe = replace(GPT2, names=replace(GPT2.names, mlp=("c_fc2", "c_fc", "c_proj"))) if gated else GPT2
    model = read(source, replace(recipe, quantised_embedding=False, quantised_head=False))
    if text.text("position_embedding_type", default="learned") == "alibi":
        return model
    rows = text.integer("n_positions", "max_position_embeddings", default=1024)
    return replace(model, every_stage=(*model.every_stage, position_table(rows, model.hidden_size)))


def read_opt(source: Source) -> ModelShape:
    """OPT: an embedding of its own width, learned positions, norms that may have no weights."""
    source = source.with_defaults(OPT_DEFAULTS)
    text = source.text
    hidden = text.integer("hidden_size")
    width = text.integer("word_embed_proj_dim", default=hidden)
    weighted = text.flag("layer_norm_elementwise_affine", default=True)
    last = text.flag("do_layer_norm_before", default=True) and not text.flag("_remove_final_layer_norm", default=False)
    recipe = replace(
        OPT,
        norms=("self_attn_layer_norm", "final_layer_norm") if weighted else (),
        has_final_norm=weighted and last,
    )
    model = read(source, recipe)
    rows = text.integer("max_position_embeddings", default=2048) + OPT_POSITION_OFFSET
    around: tuple[Module, ...] = (position_table(rows, hidden),)
    if width != hidden:
        quantization = source.quantization
        around += tuple(
            Linear(
                name,
                TensorClass.OTHER,
                Units(inputs),
                (Units(outputs),),
                Split.REPLICATED,
                scheme=quantization.linear(f"model.decoder.{name}"),
            )
            for name, inputs, outputs in (("project_in", width, hidden), ("project_out", hidden, width))
        )
    every = tuple(
        replace(module, hidden=width) if isinstance(module, Embedding) else module for module in model.every_stage
    )
    return replace(model, every_stage=every + around)


def read_bloom(source: Source) -> ModelShape:
    """BLOOM: a norm after the embedding."""
    model = read(source, BLOOM)
    after = Tensor("word_embeddings_layernorm", TensorClass.NORM, (Units(model.hidden_size),), 2)
    return replace(model, every_stage=(*model.every_stage, after))


def read_falcon(source: Source) -> ModelShape:
    """Falcon: one norm a layer or two, depending on how attention and MLP stand to each other."""
    text = source.text
    grouped = falcon_sizes(source).text.flag("new_decoder_architecture", default=False)
    parallel = text.flag("parallel_attn", default=not source.model_type.startswith("RefinedWeb"))
    norms = text.optional_integer("num_ln_in_parallel_attn") or (2 if grouped else 1)
    two = not parallel or norms == 2
    rotary = not text.flag("alibi", default=False)
    recipe = replace(FALCON, norms=("ln_attn", "ln_mlp") if two else ("input_layernorm",), rotary=rotary)
    return read(source, recipe)


def read_bigcode(source: Source) -> ModelShape:
    """GPT BigCode: transformers' class names no way to split it; only multi-query attention is split nevertheless."""
    source = gpt2_sizes(source.with_defaults({"n_positions": 1024}))
    text = source.text
    shared = text.flag("multi_query", default=True)
    source = source.overridden({"num_key_value_heads": 1 if shared else text.integer("num_attention_heads")})
    model = whole(read(source, BIGCODE), attention=not shared)
    rows = text.integer("n_positions", "max_position_embeddings", default=1024)
    mask = Tensor("causal_mask", TensorClass.OTHER, (Units(rows),), rows, element_bytes=1, buffer=True)
    return replace(
        model,
        first_stage=(*model.first_stage, position_table(rows, model.hidden_size)),
        every_stage=(*model.every_stage, mask),
    )


def read_persimmon(source: Source) -> ModelShape:
    """Persimmon: transformers' class names no way to split it."""
    return whole(read(source, PERSIMMON), attention=True)


def whole(model: ModelShape, *, attention: bool) -> ModelShape:
    """The model with MLPs, and attention if asked, whole on every rank."""
    classes = {TensorClass.MLP, TensorClass.ATTENTION} if attention else {TensorClass.MLP}
    held = {
        layer: replace(
            layer,
            modules=tuple(
                replace(module, split=Split.REPLICATED)
                if isinstance(module, Linear) and module.tensor_class in classes
                else module
                for module in layer.modules
            ),
        )
        for layer in model.distinct
    }
    return replace(model, layers=tuple(held[layer] for layer in model.layers))


READERS: dict[str, Callable[[Source], ModelShape]] = {
    "GPT2LMHeadModel": read_gpt2,
    "JAISLMHeadModel": read_jais,
    "GPTJForCausalLM": reader(GPTJ),
    "OPTForCausalLM": read_opt,
    "BloomForCausalLM": read_bloom,
    "FalconForCausalLM": read_falcon,
    "RWForCausalLM": read_falcon,
    "MptForCausalLM": reader(MPT),
    "MPTForCausalLM": reader(MPT),
    "GPTBigCodeForCausalLM": read_bigcode,
    "PersimmonForCausalLM": read_persimmon,
}
