"""DeepSeek V1 to V3.2, Kimi K2, GLM-5, GLM-4 MoE Lite, Mistral Large 3, A.X K1: latent attention over fine experts.

Source: vLLM 0.33 `model_executor/models/deepseek_v2.py`, `glm4_moe_lite.py`, `AXK1.py`, `models/deepseek_v32`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, with_defaults
from service.sizing.model.families.llama import even_head_size, uncounted_head
from service.sizing.model.fields import Fields
from service.sizing.model.latent import Indexer, Latent, indexer, latent_attention, latent_cache, nullable
from service.sizing.model.modules import Module, TensorClass, Units, Whole
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, Cache, IndexerCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source

V2: Mapping[str, Any] = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "topk_method": "greedy",
    "moe_intermediate_size": 1407,
}
V3: Mapping[str, Any] = {
    **V2,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "first_k_dense_replace": 3,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 4096,
    "topk_method": None,
}
GLM_DSA: Mapping[str, Any] = {
    **V3,
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "max_position_embeddings": 202752,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
}
GLM_LITE: Mapping[str, Any] = {
    **{name: value for name, value in V3.items() if name != "first_k_dense_replace"},
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "q_lora_rank": 768,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "max_position_embeddings": 202752,
}
AX_K1: Mapping[str, Any] = {
    **V3,
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "n_routed_experts": 192,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 32768,
    "topk_method": "noaux_tc",
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "axk1": AX_K1,
    "deepseek": {},
    "deepseek_v2": V2,
    "deepseek_v3": V3,
    "deepseek_v32": V3,
    "kimi_k2": V3,
    "glm_moe_dsa": GLM_DSA,
    "glm4_moe_lite": GLM_LITE,
}
"""What the configuration class of each model type fills in."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Expert layers of one model: which they are and how wide."""

    count: int
    active: int
    width: int
    shared_width: int
    corrected: bool
    layers: frozenset[int]

    def at(self, index: int) -> bool:
        """Whether the layer at `index` has experts."""
        return index in self.layers


def periodic(layers: int, first: int, every: int, *, aligned: bool = False) -> frozenset[int]:
    """Layers from `first` on whose index is a multiple of `every`, counted from `first` if `aligned`."""
    offset = first if aligned else 0
    return frozenset(index for index in range(first, layers) if (index - offset) % every == 0)


def read_latent(text: Fields) -> Latent:
    """Sizes of latent attention."""
    return Latent(
        heads=text.integer("num_attention_heads"),
        query_rank=nullable(text, "q_lora_rank", None),
        latent_size=text.integer("kv_lora_rank"),
        rope_size=text.integer("qk_rope_head_dim"),
        plain_size=text.integer("qk_nope_head_dim"),
        value_size=text.integer("v_head_dim"),
    )


def expert_layers(text: Fields, *, listed: bool) -> frozenset[int]:
    """Layers with experts: by `mlp_layer_types` where the class reads it (`listed`) and it is given, else by period."""
    layers = text.layers("num_hidden_layers")
    kinds = text.texts("mlp_layer_types") if listed else None
    if kinds is not None:
        return frozenset(index for index, kind in enumerate(kinds[:layers]) if kind == "sparse")
    return periodic(layers, text.integer("first_k_dense_replace", minimum=0), text.integer("moe_layer_freq", default=1))


def read_experts(text: Fields, *, corrected: bool = False, listed: bool = False) -> Experts:
    """Expert layers; none where `n_routed_experts` is null. `corrected` classes always have a routing bias."""
    count = nullable(text, "n_routed_experts", None) or 0
    width = text.integer("moe_intermediate_size") if count else 0
    return Experts(
        count=count,
        active=text.integer("num_experts_per_tok", default=1) if count else 0,
        width=width,
        shared_width=width * text.integer("n_shared_experts", default=0, minimum=0),
        corrected=text.text("topk_method", default="") == "noaux_tc" or corrected,
        layers=expert_layers(text, listed=listed) if count else frozenset(),
    )


def has_indexer(text: Fields, index: int) -> bool:
    """Whether a sparse layer runs its own indexer or reuses the choice of an earlier one."""
    name, pattern = text.raw("index_topk_pattern")
    if pattern is not None:
        letters = pattern if isinstance(pattern, str) else "".join(text.texts(name) or ())
        return index >= len(letters) or letters[index] != "S"
    every, offset = text.integer("index_topk_freq", default=1), text.integer("index_skip_topk_offset", default=2)
    return max(index - offset + 1, 0) % every == 0


def expert_layer(
    quantization: Quantization,
    path: str,
    hidden: int,
    experts: Experts,
    *,
    router_bytes: int | None = None,
    shared_whole: Whole = Whole.TOKENS_SPLIT,
    shared: str = "shared_experts",
) -> tuple[Module, ...]:
    """Router, routed experts and the shared expert of one layer."""
    modules: list[Module] = [blocks.plain_router(hidden, experts.count, element_bytes=router_bytes)]
    if experts.corrected:
        modules.append(blocks.routing_bias(experts.count))
    if experts.shared_width:
        modules += blocks.gated_mlp(
            quantization,
            f"{path}.{shared}",
            hidden,
            experts.shared_width,
            tensor_class=TensorClass.SHARED_EXPERTS,
            whole=shared_whole,
        )
    modules.append(
        blocks.routed_experts(
            quantization,
            path,
            count=experts.count,
            active=experts.active,
            hidden=hidden,
            intermediate=experts.width,
        )
    )
    return tuple(modules)


def indexer_tables(source: Source, latent: Latent) -> tuple[RopeTable, ...]:
    """Rotary tables of a sparse model: the indexer shares the attention's where it rotates the same way."""
    table = rotary_table(source, latent.rope_size, deepseek=True)
    if table is None:
        return ()
    return (table,) if source.text.flag("indexer_rope_interleave", default=False) else (table, table)


def multi_head(source: Source) -> Callable[[str], tuple[tuple[Cache, ...], tuple[Module, ...]]]:
    """The attention of DeepSeek V1: plain multi-head."""
    text, quantization = source.text, source.quantization
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    kv_heads = text.integer("num_key_value_heads", default=heads)
    size = even_head_size(source, heads)

    def attention(path: str) -> tuple[tuple[Cache, ...], tuple[Module, ...]]:
        return (AttentionCache(heads, kv_heads, size, size),), (
            blocks.query_key_value(quantization, path, hidden, heads, kv_heads, size),
            blocks.row(quantization, path, "o_proj", Units(heads, size), hidden),
        )

    return attention


def read_deepseek(
    source: Source,
    *,
    prefix: str = "model",
    head: str = "lm_head",
    tower: tuple[Module, ...] = (),
    float32_router: bool = False,
    listed: bool = False,
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    shared_whole: Whole = Whole.TOKENS_SPLIT,
    dense_whole: Whole = Whole.NEVER,
) -> ModelShape:
    """A decoder of dense layers followed by expert layers; sparse where the configuration names `index_topk`.

    Parameters
    ----------
    prefix, head : str
        Checkpoint names of the decoder and of the output head.
    tower : tuple of Module
        Weights of a vision tower in front.
    float32_router : bool
        Whether routers are kept in float32, always with a routing bias.
    listed : bool
        Whether the class reads which layers have experts from `mlp_layer_types`.
    norms : tuple of str
        Norms of a layer.
    shared_whole, dense_whole : Whole
        When shared experts and dense layers are held whole.
    """
    defaults = DEFAULTS.get(source.model_type)
    if defaults is None:
        raise source.refuse("model_type", because=f"attention of model_type {source.model_type!r} is not known")
    source = with_defaults(source, defaults)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    plain = source.model_type == "deepseek"
    experts = read_experts(text, corrected=float32_router, listed=listed)
    dense_width = text.integer("intermediate_size")
    sparse = not plain and text.optional_integer("index_topk") is not None
    latent = None if plain else read_latent(text)
    index = Indexer(text.integer("index_n_heads"), text.integer("index_head_dim")) if sparse else None
    if index and (latent is None or latent.query_rank is None):
        raise source.refuse("q_lora_rank", "index_topk", because="sparse attention needs compressed queries")
    layers = text.layers("num_hidden_layers")
    own = [sparse and has_indexer(text, number) for number in range(layers)]

    def layer(number: int) -> LayerShape:
        path = f"{prefix}.layers.{number}"
        caches: tuple[Cache, ...]
        if latent is None:
            caches, attention = multi_head(source)(f"{path}.self_attn")
        else:
            caches = (latent_cache(latent, sparse=sparse),)
            attention = latent_attention(quantization, f"{path}.self_attn", hidden, latent)
            if index and latent.query_rank and own[number]:
                caches = (IndexerCache(index.head_size), *caches)
                attention += indexer(quantization, f"{path}.self_attn.indexer", hidden, latent.query_rank, index)
        mlp = (
            expert_layer(
                quantization,
                f"{path}.mlp",
                hidden,
                experts,
                router_bytes=4 if float32_router else None,
                shared_whole=shared_whole,
            )
            if experts.at(number)
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, dense_width, whole=dense_whole)
        )
        return LayerShape(caches, (*attention, *mlp, *(blocks.norm(name, hidden) for name in norms)))

    if latent is None:
        heads = text.integer("num_attention_heads")
        kv_heads = text.integer("num_key_value_heads", default=heads)
        table = rotary_table(source, even_head_size(source, heads))
        tables = (table,) if table else ()
    else:
        heads, kv_heads = latent.heads, 1
        table = rotary_table(source, latent.rope_size, deepseek=True)
        tables = indexer_tables(source, latent) if sparse else ((table,) if table else ())
    return assemble(
        source,
        build_layers(source, [(experts.at(number), own[number]) for number in range(layers)], layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=False,
            embedding=f"{prefix}.embed_tokens",
            norm=f"{prefix}.norm",
            head=head,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=experts.count,
        rope_tables=tables,
        tower=tower,
    )


def read_sparse(source: Source) -> ModelShape:
    """DeepSeek V3.2 and GLM-5: the sparse attention class, which splits tokens in dense layers too."""
    if "index_topk" not in source.text and source.model_type != "glm_moe_dsa":
        raise source.invalid("index_topk", "index_topk is missing: sparse attention needs it")
    return read_deepseek(source, dense_whole=Whole.TOKENS_SPLIT_ONE_STAGE)


def read_glm_lite(source: Source) -> ModelShape:
    """GLM-4 MoE Lite: float32 routers with a routing bias; shared experts are always split."""
    return read_deepseek(source, float32_router=True, shared_whole=Whole.NEVER)


def read_ax_k1(source: Source) -> ModelShape:
    """A.X K1: a norm after each MLP too."""
    norms = ("input_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    return read_deepseek(source, listed=True, norms=norms)


def read_bidirectional(source: Source) -> ModelShape:
    """DeepSeek V3 as an embedding model: the class builds a head that the checkpoint lacks."""
    model = read_deepseek(source)
    return replace(model, last_stage=uncounted_head(model.last_stage), every_stage=uncounted_head(model.every_stage))


READERS = {
    "AXK1ForCausalLM": read_ax_k1,
    "DeepseekForCausalLM": read_deepseek,
    "DeepseekV2ForCausalLM": read_deepseek,
    "DeepseekV3BidirectionalModel": read_bidirectional,
    "DeepseekV3ForCausalLM": read_deepseek,
    "MistralLarge3ForCausalLM": read_deepseek,
    "DeepseekV32ForCausalLM": read_sparse,
    "GlmMoeDsaForCausalLM": read_sparse,
    "Glm4MoeLiteForCausalLM": read_glm_lite,
}
