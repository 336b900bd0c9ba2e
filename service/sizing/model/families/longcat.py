"""LongCat-Flash and LongCat-Flash-Lite: two latent attentions and two MLPs a layer around one set of experts.

Source: vLLM 0.33 `model_executor/models/longcat_flash.py`, `longcat_flash_ngram.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import Ends, assemble, build_layers, ends, with_defaults
from service.sizing.model.families.deepseek import read_latent
from service.sizing.model.latent import latent_attention, latent_cache
from service.sizing.model.modules import Embedding, Module, Tensor, TensorClass, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import LayerShape, ModelShape
from service.sizing.model.source import Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 131072,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "max_position_embeddings": 131072,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 512,
    "zero_expert_num": 256,
}
HALVES = (0, 1)
"""Each layer has two of everything but the experts."""


def n_gram_embedding(source: Source, hidden: int, vocabulary: int) -> tuple[Module, ...]:
    """Hashed embeddings of the tokens before, on the first stage: a table split like a vocabulary, and projections."""
    text = source.text
    if "ngram_vocab_size_ratio" not in text:
        return ()
    base = text.number("ngram_vocab_size_ratio") * vocabulary
    splits, neighbours = text.integer("emb_split_num"), text.integer("emb_neighbor_num", minimum=2)
    tables = splits * (neighbours - 1)
    rows, width = sum(int(base + 2 * index + 1) for index in range(tables)), hidden // tables
    return (
        Embedding("ngram_embeddings.oe_embedder", TensorClass.EMBEDDING, rows, width),
        Tensor("ngram_embeddings.oe_projection", TensorClass.EMBEDDING, (Units(tables * width),), columns=hidden),
        Tensor(
            "ngram_embeddings.tables",
            TensorClass.EMBEDDING,
            (Units(tables * neighbours + tables + tables + 1),),
            element_bytes=4,
            buffer=True,
        ),
    )


def read_longcat(source: Source) -> ModelShape:
    """LongCat-Flash; routers, which also choose experts that do nothing, are kept in float32."""
    source = with_defaults(source, DEFAULTS)
    text = source.text
    if source.text.text("zero_expert_type", default="") == "":
        raise source.invalid("zero_expert_type", "zero_expert_type is missing: the engine needs it")
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    width = text.integer("ffn_hidden_size", "intermediate_size", default=12288)
    experts, idle = text.integer("n_routed_experts"), text.integer("zero_expert_num", minimum=0)
    layers = (
        text.layers("num_layers", default=28)
        if "num_layers" in text
        else text.layers("num_hidden_layers", default=56) // 2
    )
    latent = read_latent(text)
    plain = text.texts("disable_quant_module") or []
    quantization = source.quantization
    attention_quantization = NotQuantised() if "self_attn" in plain else quantization
    mlp_quantization = NotQuantised() if "mlps" in plain else quantization

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        modules: list[Module] = []
        for half in HALVES:
            modules += latent_attention(attention_quantization, f"{path}.self_attn.{half}", hidden, latent)
            modules += blocks.gated_mlp(mlp_quantization, f"{path}.mlps.{half}", hidden, width)
            modules += (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        modules += (
            blocks.plain_router(hidden, experts + idle, name="router.classifier", element_bytes=4),
            blocks.routing_bias(experts + idle),
            blocks.routed_experts(
                quantization,
                f"{path}.mlp",
                count=experts,
                active=text.integer("moe_topk", "num_experts_per_tok", default=12),
                hidden=hidden,
                intermediate=text.integer("expert_ffn_hidden_size", "moe_intermediate_size", default=2048),
            ),
        )
        return LayerShape((latent_cache(latent),) * len(HALVES), tuple(modules))

    around = ends(source, hidden, vocabulary, tied=False, quantised=False, quantised_head=True)
    if source.architecture == "LongcatFlashNgramForCausalLM":
        around = Ends((*around.first, *n_gram_embedding(source, hidden, vocabulary)), around.last)
    table = rotary_table(source, latent.rope_size, deepseek=True)
    return assemble(
        source,
        build_layers(source, [0] * layers, layer),
        around,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=latent.heads,
        kv_heads=1,
        experts=experts,
        rope_tables=(table,) if table else (),
    )


READERS = {"LongcatFlashForCausalLM": read_longcat, "LongcatFlashNgramForCausalLM": read_longcat}
