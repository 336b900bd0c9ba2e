"""Kimi Linear and Kimi K3: Kimi delta attention with latent attention every few layers, and experts.

Source: vLLM 0.33 `models/kimi_k3/nvidia/model.py`, `mla.py`, `kda.py`, `layers/mamba/gdn/kimi_gdn_linear_attn.py`,
`transformers_utils/configs/kimi_linear.py`, `kimi_k3.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model import blocks
from service.sizing.model.assembly import Ends, assemble, build_layers, ends, with_defaults
from service.sizing.model.families.kimi_k25 import tower_quantization
from service.sizing.model.fields import Fields
from service.sizing.model.latent import Latent, latent_attention, latent_cache, nullable
from service.sizing.model.modules import Experts, Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.quantization import Quantization
from service.sizing.model.shape import Cache, LayerShape, ModelShape, StateCache, StateKind, StateTensor
from service.sizing.model.source import Source
from service.sizing.model.towers import moon_vit_tower
from service.sizing.quantities import ceil_div

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 163840,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "num_shared_experts": 0,
    "first_k_dense_replace": 0,
    "moe_layer_freq": 1,
}
VISION: Mapping[str, Any] = {
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "init_pos_emb_time": 4,
    "merge_kernel_size": [2, 2],
    "mm_projector_type": "patchmergerv2",
    "qkv_hidden_size": 1536,
    "norm_type": "rmsnorm",
    "attn_bias": False,
    "patch_embed_proj_bias": False,
    "linear_bias": False,
}
VISION_SIZES = {
    "hidden_size": ("vt_hidden_size", 1024),
    "intermediate_size": ("vt_intermediate_size", 4096),
    "num_attention_heads": ("vt_num_attention_heads", 12),
    "num_hidden_layers": ("vt_num_hidden_layers", 27),
}
"""Sizes of Kimi K3's tower: published name and default."""

PROJECTION_MULTIPLE = 16
"""Rows that the fused input projection of Kimi K3 is padded to a multiple of on each rank."""

LEAST_EXPERT_WIDTH = 256
"""Narrowest share of an expert that tensor parallel leaves a rank."""

STATE = TensorClass.STATE


@dataclass(frozen=True, slots=True)
class DeltaAttention:
    """Sizes of Kimi delta attention; `full_gate` is Kimi K3's output gate of full rank.

    Only with a `bounded_gate` is there a prefill kernel that writes states out midway.
    """

    heads: int
    head_size: int
    kernel: int
    full_gate: bool
    bounded_gate: bool

    @property
    def width(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_size

    def cache(self) -> StateCache:
        """Convolution window over queries, keys and values; the recurrent state in float32."""
        return StateCache(
            StateKind.KIMI_DELTA_ATTENTION,
            (
                StateTensor((Units(3 * self.width),), self.kernel - 1, 2),
                StateTensor((Units(self.heads, self.head_size),), self.head_size, 4),
            ),
            exports_checkpoints=self.full_gate and self.bounded_gate,
        )

    def modules(self, quantization: Quantization, path: str, hidden: int) -> tuple[Module, ...]:
        """Weights; the low-rank decay comes out of the fused projection whole on every rank."""
        width, heads, size = Units(self.width), Units(self.heads), self.head_size
        decay = Units(1, size, replicated=True)
        names = ("q_proj", "k_proj", "v_proj", *(("g_proj",) if self.full_gate else ()), "b_proj", "f_a_proj")
        gate: tuple[Module, ...] = ()
        if not self.full_gate:
            gate = (
                blocks.replicated(quantization, path, "g_a_proj", hidden, size, tensor_class=STATE),
                blocks.column(quantization, path, "g_b_proj", size, width, tensor_class=STATE),
            )
        return (
            Linear(
                "in_proj_qkvgfab",
                STATE,
                Units(hidden),
                (width,) * (4 if self.full_gate else 3) + ((decay, heads) if self.full_gate else (heads, decay)),
                Split.COLUMN,
                scheme=quantization.linear(*(f"{path}.{name}" for name in names)),
                output_multiple=PROJECTION_MULTIPLE if self.full_gate else 1,
            ),
            blocks.column(quantization, path, "f_b_proj", size, width, tensor_class=STATE),
            Tensor("dt_bias", STATE, (width,), split=True, element_bytes=4),
            Tensor("conv1d", STATE, (Units(3 * self.width),), columns=self.kernel, split=True, element_bytes=4),
            Tensor("A_log", STATE, (heads,), split=True, element_bytes=4),
            *gate,
            blocks.norm("o_norm", size),
            blocks.row(quantization, path, "o_proj", width, hidden, tensor_class=STATE),
        )


def gated_latent_attention(
    quantization: Quantization, path: str, hidden: int, latent: Latent, *, gate: bool
) -> tuple[Module, ...]:
    """Latent attention without rotation; an output gate shares the input projection of compressed queries."""
    modules = latent_attention(quantization, path, hidden, latent)
    scale = Tensor("_one_scale", TensorClass.ATTENTION, (Units(1),), element_bytes=4, buffer=True)
    if not gate:
        return (*modules, scale)
    out = Units(latent.heads, latent.value_size)
    if latent.query_rank is None:
        return (*modules, blocks.column(quantization, path, "g_proj", hidden, out), scale)
    fused = Linear(
        "fused_qkv_a_g_proj",
        TensorClass.ATTENTION,
        Units(hidden),
        (
            Units(1, latent.query_rank, replicated=True),
            Units(1, latent.latent_size + latent.rope_size, replicated=True),
            out,
        ),
        Split.COLUMN,
        scheme=quantization.linear(f"{path}.q_a_proj", f"{path}.kv_a_proj_with_mqa", f"{path}.g_proj"),
    )
    return (fused, *(module for module in modules if module.name != "fused_qkv_a_proj"), scale)


def expert_layer(source: Source, path: str) -> tuple[Module, ...]:
    """Experts, behind a projection to a narrower latent where the configuration has one, and a shared expert."""
    text, quantization = source.text, source.quantization
    hidden, width, count = (
        text.integer("hidden_size"),
        text.integer("moe_intermediate_size"),
        text.integer("num_experts"),
    )
    latent, shared = text.optional_integer("routed_expert_hidden_size"), text.integer("num_shared_experts", minimum=0)
    modules: list[Module] = [blocks.plain_router(hidden, count), blocks.routing_bias(count)]
    if shared:
        modules += blocks.gated_mlp(
            quantization,
            f"{path}.shared_experts",
            hidden,
            width * shared,
            tensor_class=TensorClass.SHARED_EXPERTS,
            whole=Whole.TOKENS_SPLIT_ONE_STAGE,
        )
    if latent:
        for name, inputs, outputs in (
            ("routed_expert_down_proj", hidden, latent),
            ("routed_expert_up_proj", latent, hidden),
        ):
            modules.append(
                blocks.replicated(quantization, path, name, inputs, outputs, tensor_class=TensorClass.EXPERTS)
            )
        if text.flag("latent_moe_use_norm", default=False):
            modules.append(blocks.norm("routed_expert_norm", latent))
    modules.append(
        Experts(
            "experts",
            count,
            text.integer("num_experts_per_token"),
            latent or hidden,
            width,
            scheme=quantization.experts(f"{path}.experts"),
            least_width=text.integer("min_moe_intermediate_per_partition", default=LEAST_EXPERT_WIDTH, minimum=0),
        )
    )
    return tuple(modules)


def read_delta_attention(text: Fields) -> tuple[DeltaAttention | None, frozenset[int]]:
    """Sizes of delta attention and the layers (counted from one) that use it."""
    linear = text.child("linear_attn_config")
    if linear is None:
        return None, frozenset()
    layers = linear.integers("kda_layers", minimum=1)
    if layers is None:
        field = linear.named("kda_layers")
        raise InvalidConfig(field, f"{field} is missing: give the list of layers, counted from one")
    sizes = DeltaAttention(
        heads=linear.integer("num_heads"),
        head_size=linear.integer("head_dim"),
        kernel=linear.integer("short_conv_kernel_size"),
        full_gate=linear.flag("use_full_rank_gate", default=False),
        bounded_gate=linear.raw("gate_lower_bound")[1] is not None,
    )
    return sizes, frozenset(layers)


def residual_scorer(name: str, hidden: int) -> tuple[Module, ...]:
    """What weighs the residuals of earlier blocks: a norm and one row."""
    return (
        blocks.norm(f"{name}_norm", hidden),
        Linear(f"{name}_proj", TensorClass.OTHER, Units(hidden), (Units(1),), Split.REPLICATED),
    )


def read_kimi_linear(
    source: Source, *, prefix: str = "model", head: str = "lm_head", tower: tuple[Module, ...] = ()
) -> ModelShape:
    """Kimi Linear; no rotary table, since latent attention does not rotate here."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads, width = text.integer("num_attention_heads"), text.integer("intermediate_size")
    layers = text.layers("num_hidden_layers")
    delta, recurrent = read_delta_attention(text)
    if not text.flag("mla_use_nope", default=False) and len(recurrent) < layers:
        raise source.refuse(
            "mla_use_nope", because="latent attention with rotation (mla_use_nope is not true) is not known"
        )
    latent = Latent(
        heads=heads,
        query_rank=nullable(text, "q_lora_rank", None),
        latent_size=text.integer("kv_lora_rank"),
        rope_size=text.integer("qk_rope_head_dim"),
        plain_size=text.integer("qk_nope_head_dim"),
        value_size=text.integer("v_head_dim"),
    )
    gate, experts = text.flag("mla_use_output_gate", default=False), text.optional_integer("num_experts")
    first, every = text.integer("first_k_dense_replace", minimum=0), text.integer("moe_layer_freq")
    block = text.optional_integer("attn_res_block_size")
    kinds = [
        (index + 1 in recurrent, experts is not None and index >= first and index % every == 0)
        for index in range(layers)
    ]

    def layer(index: int) -> LayerShape:
        path = f"{prefix}.layers.{index}"
        cache: Cache
        if kinds[index][0] and delta:
            cache, mixing = delta.cache(), delta.modules(quantization, f"{path}.self_attn", hidden)
        else:
            cache = latent_cache(latent)
            mixing = gated_latent_attention(quantization, f"{path}.self_attn", hidden, latent, gate=gate)
        mlp = (
            expert_layer(source, f"{path}.block_sparse_moe")
            if kinds[index][1]
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, width, whole=Whole.TOKENS_SPLIT_ONE_STAGE)
        )
        norms = (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        residuals = (
            (*residual_scorer("self_attention_res", hidden), *residual_scorer("mlp_res", hidden)) if block else ()
        )
        return LayerShape((cache,), (*mixing, *mlp, *norms, *residuals))

    around = ends(
        source,
        hidden,
        vocabulary,
        tied=False,
        embedding=f"{prefix}.embed_tokens",
        norm=f"{prefix}.norm",
        head=head,
        quantised=False,
        quantised_head=True,
    )
    if block:
        around = Ends(around.first, (*around.last, *residual_scorer("output_attn_res", hidden)))
    return assemble(
        source,
        build_layers(source, kinds, layer),
        around,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=1,
        experts=experts or 0,
        tower=tower,
        handoff_tensors=1 + ceil_div(layers, block) if block else 2,
    )


def read_kimi_k3(source: Source) -> ModelShape:
    """Kimi K3: the decoder behind a 3-D MoonViT of its own."""
    given = source.root.child("vision_config") or Fields({}, "vision_config")
    sizes = {name: given.integer(published, default=default) for name, (published, default) in VISION_SIZES.items()}
    vision = Fields({**VISION, **given.values, **sizes}, given.path)
    hidden = source.text.integer("hidden_size", default=DEFAULTS["hidden_size"])
    tower = moon_vit_tower(tower_quantization(source), vision, hidden)
    return read_kimi_linear(source, prefix="language_model.model", head="language_model.lm_head", tower=tower)


READERS = {"KimiLinearForCausalLM": read_kimi_linear, "KimiK3ForConditionalGeneration": read_kimi_k3}
