"""Decoders that vLLM runs through its Transformers backend: built as transformers' own classes build them.

Source: vLLM 0.33 `model_executor/models/registry.py`, `model_executor/models/transformers/`; transformers 5.20
`models/*/modeling_*.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.families.dense import FUSED_GATE
from service.sizing.model.families.expert_layers import olmoe
from service.sizing.model.families.llama import read, read_attention, reader
from service.sizing.model.families.mixture import Mixture, after_dense, everywhere, layer_count, same_everywhere
from service.sizing.model.families.recipe import HeadNorms, Names, Recipe, Spelling
from service.sizing.model.families.windows import periodic_layers, unrotated_windows
from service.sizing.model.modules import Tensor, TensorClass, Units
from service.sizing.model.rope import inverse_frequencies
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source


def hunyuan(source: Source) -> Mixture:
    """Hunyuan: one shared MLP of the dense width; sizes may be lists, equal for all layers."""
    text = source.text
    width = same_everywhere(source, "moe_intermediate_size", default=text.integer("intermediate_size"))
    return Mixture(
        places=everywhere(source),
        count=same_everywhere(source, "num_experts", default=1),
        active=same_everywhere(source, "moe_topk", default=1),
        width=width,
        router="gate.wg",
        quantised_router=True,
        shared_width=text.integer("intermediate_size"),
        shared="mlp.shared_mlp",
    )


def dots(source: Source) -> Mixture:
    """dots.llm1: a correction that is a buffer; shared experts as one."""
    text = source.text
    count = text.integer("n_routed_experts")
    width = text.integer("moe_intermediate_size")
    return Mixture(
        places=after_dense(source, count, first=0),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=width,
        correction=replace(blocks.routing_bias(count), buffer=True),
        shared_width=width * text.integer("n_shared_experts", default=0, minimum=0),
    )


def solar(source: Source) -> Mixture:
    """Solar Open: as dots.llm1, in every layer."""
    return replace(dots(source), places=everywhere(source))


def mellum(source: Source) -> Mixture:
    """Mellum: in layers that `mlp_layer_types` calls sparse, by default all."""
    text, layers = source.text, layer_count(source)
    kinds = text.texts("mlp_layer_types") or ["sparse"] * layers
    if len(kinds) < layers:
        raise source.invalid(
            "mlp_layer_types", f"mlp_layer_types must name num_hidden_layers ({layers}) layers, not {len(kinds)}"
        )
    return Mixture(
        places=tuple(kind == "sparse" for kind in kinds[:layers]),
        count=text.integer("num_experts"),
        active=text.integer("num_experts_per_tok"),
        width=text.integer("moe_intermediate_size"),
    )


def kolibri(source: Source) -> Mixture:
    """Kolibri: a correction that is a buffer; one shared expert of its own width."""
    text = source.text
    count = text.integer("num_experts")
    return Mixture(
        places=everywhere(source),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=text.integer("moe_intermediate_size"),
        correction=replace(blocks.routing_bias(count), buffer=True),
        shared_width=text.integer("shared_expert_intermediate_size"),
        shared="mlp.shared_expert",
    )


TRANSFORMERS = Recipe(
    query_bias=("attention_bias",), output_bias=("attention_bias",), mixed_windows=True, transformers=True
)
OLMO2 = replace(
    TRANSFORMERS,
    head_norms=HeadNorms.ALL_HEADS,
    norms=("post_attention_layernorm", "post_feedforward_layernorm"),
)
OLMO3 = replace(OLMO2, prepare=periodic_layers(4, 3))
MELLUM = replace(TRANSFORMERS, head_norms=HeadNorms.HEAD, prepare=periodic_layers(1, 0), experts=mellum)
VAULT_GEMMA = replace(
    TRANSFORMERS,
    norms=("input_layernorm", "pre_feedforward_layernorm"),
    tied=True,
    prepare=periodic_layers(2, 1),
    buffers=(Tensor("embed_scale", TensorClass.OTHER, (Units(1),), buffer=True),),
)

RECIPES: dict[str, Recipe] = {
    "ArceeForCausalLM": replace(TRANSFORMERS, names=Names(mlp=("up_proj", "down_proj")), mlp_bias=("mlp_bias",)),
    "GlmForCausalLM": replace(TRANSFORMERS, names=Names(mlp=FUSED_GATE), output_bias=False),
    "GPTNeoXForCausalLM": replace(
        TRANSFORMERS,
        spelling=Spelling(kv_heads=(), head_size=()),
        names=Names(
            layers="gpt_neox.layers",
            embedding="gpt_neox.embed_in",
            norm="gpt_neox.final_layer_norm",
            head="embed_out",
            attention="attention",
            queries=("query_key_value",),
            output="dense",
            mlp=("dense_h_to_4h", "dense_4h_to_h"),
        ),
        mlp_bias=True,
        norm_bias=True,
    ),
    "HeliumForCausalLM": replace(TRANSFORMERS, output_bias=False, mlp_bias=("mlp_bias",)),
    "HunYuanDenseV1ForCausalLM": replace(TRANSFORMERS, head_norms=HeadNorms.HEAD),
    "Jais2ForCausalLM": replace(
        TRANSFORMERS, names=Names(mlp=("up_proj", "down_proj")), mlp_bias=("mlp_bias",), norm_bias=True
    ),
    "OlmoForCausalLM": replace(TRANSFORMERS, norms=(), has_final_norm=False),
    "Olmo2ForCausalLM": OLMO2,
    "PhiForCausalLM": replace(
        TRANSFORMERS,
        names=Names(norm="model.final_layernorm", output="dense", mlp=("fc1", "fc2")),
        query_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_norms=HeadNorms.HEAD,
        head_norms_field="qk_layernorm",
        head_norm_bias=True,
        norms=("input_layernorm",),
        norm_bias=True,
        loaded_head_bias=True,
    ),
    "SeedOssForCausalLM": replace(TRANSFORMERS, output_bias=("attention_out_bias",), mlp_bias=("mlp_bias",)),
    "SmolLM3ForCausalLM": replace(TRANSFORMERS, mlp_bias=("mlp_bias",), tied=True, prepare=unrotated_windows),
    "Starcoder2ForCausalLM": replace(
        TRANSFORMERS,
        names=Names(mlp=("c_fc", "c_proj")),
        query_bias=("use_bias",),
        output_bias=("use_bias",),
        mlp_bias=("use_bias",),
        norm_bias=True,
        tied=True,
    ),
    "FlexOlmoForCausalLM": replace(OLMO2, experts=olmoe),
    "HunYuanMoEV1ForCausalLM": replace(TRANSFORMERS, head_norms=HeadNorms.HEAD, experts=hunyuan),
    "CwmForCausalLM": replace(
        TRANSFORMERS, query_bias=False, output_bias=False, mlp_bias=("mlp_bias",), prepare=periodic_layers(4, 0)
    ),
    "MinistralForCausalLM": replace(TRANSFORMERS, query_bias=False, output_bias=False),
    "SolarOpenForCausalLM": replace(TRANSFORMERS, output_bias=False, experts=solar),
    "Kolibri1ForCausalLM": replace(
        TRANSFORMERS,
        query_bias=False,
        output_bias=False,
        head_norms=HeadNorms.HEAD,
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "post_self_attn_layernorm",
            "post_mlp_layernorm",
        ),
        prepare=periodic_layers(5, 4),
        experts=kolibri,
    ),
    "Dots1ForCausalLM": replace(TRANSFORMERS, head_norms=HeadNorms.HEAD, experts=dots),
}


def read_by_kind(source: Source, recipe: Recipe) -> ModelShape:
    """A decoder with frequencies of its own for each kind of layer."""
    model = read(source, recipe)
    prepared = recipe.prepare(source) if recipe.prepare else source
    kinds = len(set(prepared.text.texts("layer_types") or ("full_attention",)))
    frequencies = inverse_frequencies(source, read_attention(source).head_size)
    return replace(model, every_stage=(*model.every_stage, *(frequencies,) * (kinds - 1)))


def read_vault_gemma(source: Source) -> ModelShape:
    """VaultGemma: attention scores are capped unless the configuration says otherwise."""
    capped = source.text.number("attn_logit_softcapping", default=50.0)
    return replace(read(source, VAULT_GEMMA), logit_softcap=bool(capped))


READERS: dict[str, Callable[[Source], ModelShape]] = {
    **{architecture: reader(recipe) for architecture, recipe in RECIPES.items()},
    "MellumForCausalLM": partial(read_by_kind, recipe=MELLUM),
    "Olmo3ForCausalLM": partial(read_by_kind, recipe=OLMO3),
    "VaultGemmaForCausalLM": read_vault_gemma,
}
