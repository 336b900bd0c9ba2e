"""openPangu Ultra MoE: latent attention over fine-grained experts, with norms before and after each block.

Source: vLLM 0.33 `model_executor/models/openpangu.py`.
"""

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends
from service.sizing.model.families.deepseek import Experts, expert_layer, periodic, read_latent
from service.sizing.model.latent import latent_attention, latent_cache, nullable
from service.sizing.model.shape import LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source

LATENT_FIELDS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")


def read_pangu(source: Source) -> ModelShape:
    """openPangu Ultra MoE."""
    text, quantization = source.text, source.quantization
    absent = [name for name in LATENT_FIELDS if name not in text]
    if absent or text.integer("param_sink_number", default=0, minimum=0):
        raise source.refuse(*(absent or ["param_sink_number"]), because="attention other than latent is not known")
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    width, latent = text.integer("intermediate_size"), read_latent(text)
    layers = text.layers("num_hidden_layers")
    count = nullable(text, "n_routed_experts", None) or 0
    expert_width = text.integer("moe_intermediate_size") if count else 0
    experts = Experts(
        count=count,
        active=text.integer("num_experts_per_tok") if count else 0,
        width=expert_width,
        shared_width=expert_width * text.integer("n_shared_experts", default=0, minimum=0),
        corrected=text.flag("router_enable_expert_bias", default=False),
        layers=periodic(layers, text.integer("first_k_dense_replace", minimum=0), 1) if count else frozenset(),
    )
    norms = ("input_layernorm", "post_attention_layernorm")
    if text.flag("sandwich_norm", default=False):
        norms += ("pre_mlp_layernorm", "post_mlp_layernorm")

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        mlp = (
            expert_layer(quantization, f"{path}.mlp", hidden, experts)
            if experts.at(index)
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, width, bias=text.flag("mlp_bias", default=False))
        )
        attention = latent_attention(quantization, f"{path}.self_attn", hidden, latent)
        return LayerShape((latent_cache(latent),), (*attention, *mlp, *(blocks.norm(name, hidden) for name in norms)))

    positions = text.integer("max_position_embeddings", default=8192)
    return assemble(
        source,
        build_layers(source, [experts.at(index) for index in range(layers)], layer),
        ends(source, hidden, vocabulary, tied=source.tied(default=False)),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=latent.heads,
        kv_heads=1,
        experts=count,
        rope_tables=(RopeTable(positions, latent.rope_size, 2),),
    )


READERS = {"PanguUltraMoEForCausalLM": read_pangu}
