"""Sarvam with latent attention: projections down kept apart, shared experts always split.

Source: vLLM 0.33 `model_executor/models/sarvam.py: SarvamMLAForCausalLM`.
"""

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends
from service.sizing.model.families.deepseek import Experts, expert_layer, periodic, read_latent
from service.sizing.model.latent import latent_attention, latent_cache, nullable
from service.sizing.model.modules import Whole
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import LayerShape, ModelShape
from service.sizing.model.source import Source

DENSE_WIDTH = 16384
"""Width of dense layers of a configuration that names none."""


def read_sarvam_mla(source: Source) -> ModelShape:
    """Sarvam with latent attention."""
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    layers, latent = text.layers("num_hidden_layers"), read_latent(text)
    width, count = text.integer("intermediate_size", default=DENSE_WIDTH), nullable(text, "num_experts", None) or 0
    first, every = (
        text.integer("first_k_dense_replace", default=1, minimum=0),
        text.integer("moe_layer_freq", default=1),
    )
    expert_width = text.integer("moe_intermediate_size") if count else 0
    shared = text.integer("moe_shared_expert_intermediate_size", default=expert_width, minimum=0)
    experts = Experts(
        count=count,
        active=text.integer("num_experts_per_tok") if count else 0,
        width=expert_width,
        shared_width=shared * text.integer("num_shared_experts", default=1, minimum=0),
        corrected=text.flag("moe_router_enable_expert_bias", default=True),
        layers=periodic(layers, first, every, aligned=True) if count else frozenset(),
    )

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        mlp = (
            expert_layer(quantization, f"{path}.mlp", hidden, experts, shared_whole=Whole.NEVER)
            if experts.at(index)
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, width)
        )
        attention = latent_attention(quantization, f"{path}.self_attn", hidden, latent, fused=False)
        norms = (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        return LayerShape((latent_cache(latent),), (*attention, *mlp, *norms))

    table = rotary_table(source, latent.rope_size)
    return assemble(
        source,
        build_layers(source, [experts.at(index) for index in range(layers)], layer),
        ends(source, hidden, vocabulary, tied=source.tied(default=False)),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=latent.heads,
        kv_heads=1,
        experts=count,
        rope_tables=(table,) if table else (),
    )


READERS = {"SarvamMLAForCausalLM": read_sarvam_mla}
