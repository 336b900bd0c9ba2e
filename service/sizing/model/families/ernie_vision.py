"""ERNIE 4.5 VL: experts for words and others for patches in every expert layer.

Source: vLLM 0.33 `model_executor/models/ernie45_vl.py`, `ernie45_vl_moe.py`.
"""

from dataclasses import dataclass, replace

from service.sizing.model import blocks
from service.sizing.model.families.llama import FLOAT32_BYTES, read
from service.sizing.model.families.mixture import layer_count
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.families.recipe import Recipe
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.ernie import ernie_tower, resampler
from service.sizing.model.towers.parts import LONG_BYTES, TOWER

TOKENS = ("im_patch_id", "image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id")
"""Tokens that mark images, of which the engine keeps a list."""

POSITIONS_FACTOR = 4
"""Positions of a rotary table for each of the context, as vision needs."""


@dataclass(frozen=True, slots=True)
class TwoMixtures:
    """Experts for words and for patches, and shared ones, in the layers from `first` to `last`."""

    counts: tuple[int, int]
    widths: tuple[int, int]
    active: int
    shared: int
    places: tuple[bool, ...]

    @property
    def count(self) -> int:
        """Routed experts of a layer, as the engine counts them."""
        return max(self.counts)

    def at(self, index: int) -> bool:
        """Whether the layer at `index` has experts."""
        return self.places[index]

    def modules(self, source: Source, path: str, hidden: int) -> tuple[Module, ...]:
        """Both routers with their corrections, both sets of experts and the shared ones."""
        quantization, block = source.quantization, f"{path}.mlp"
        modules: list[Module] = [
            Tensor(
                "e_score_correction_bias",
                TensorClass.ROUTER,
                (Units(2 * self.counts[0]),),
                element_bytes=FLOAT32_BYTES,
            )
        ]
        for kind, count, width in zip(("text", "vision"), self.counts, self.widths, strict=True):
            modules += (
                blocks.plain_router(hidden, count, name=f"{kind}_experts_gate", element_bytes=FLOAT32_BYTES),
                blocks.routed_experts(
                    quantization,
                    block,
                    count=count,
                    active=self.active,
                    hidden=hidden,
                    intermediate=width,
                    name=f"{kind}_experts",
                ),
            )
        if self.shared:
            modules += blocks.gated_mlp(
                quantization,
                f"{block}.shared_experts",
                hidden,
                self.shared,
                tensor_class=TensorClass.SHARED_EXPERTS,
            )
        return tuple(modules)


def pair(source: Source, name: str) -> tuple[int, int]:
    """A field that says something of words and of patches."""
    values = source.text.integers(name)
    if values is None or len(values) != 2:
        raise source.invalid(name, f"{name} must list two numbers, for words and for patches")
    return values[0], values[1]


def experts(source: Source) -> TwoMixtures:
    """The expert layers, which must be the same for words and for patches."""
    text, layers = source.text, layer_count(source)
    starts, every = pair(source, "moe_layer_start_index"), text.integer("moe_layer_interval", default=1)
    last = layers - 1
    ends = pair(source, "moe_layer_end_index") if "moe_layer_end_index" in text else (last, last)
    ends = (min(ends[0], last), min(ends[1], last))
    for field, values in (("moe_layer_start_index", starts), ("moe_layer_end_index", ends)):
        if values[0] != values[1]:
            raise source.refuse(field, because="layers with one kind of experts only are not known")
    counts, widths = pair(source, "moe_num_experts"), pair(source, "moe_intermediate_size")
    return TwoMixtures(
        counts=counts,
        widths=widths,
        active=text.integer("moe_k"),
        shared=widths[0] * text.integer("moe_num_shared_experts", default=0, minimum=0),
        places=tuple(
            (index + 1) % every == 0 and starts[0] <= index <= ends[0] and max(counts) > 0 for index in range(layers)
        ),
    )


def own_table(source: Source, path: str) -> tuple[Module, ...]:
    """The rotary table that every layer has of its own."""
    del path
    text = source.text
    positions = POSITIONS_FACTOR * text.integer("max_position_embeddings", default=131072)
    size = text.optional_integer("head_dim") or text.integer("hidden_size") // text.integer("num_attention_heads")
    return (Tensor("rotary_emb", TensorClass.OTHER, (Units(positions),), columns=size, element_bytes=2, buffer=True),)


RECIPE = Recipe(
    query_bias=("use_bias",),
    mlp_bias=("use_bias",),
    tied=True,
    rotary=False,
    extra=own_table,
    experts=experts,
)


def towers(source: Source) -> tuple[Module, ...]:
    """The tower and its resampler."""
    root = source.root
    vision = tower_config(source)
    merged = root.integer("pixel_hidden_size") * root.integer("spatial_conv_size") ** 2
    moments = root.integer("temporal_conv_size") if root.flag("use_temporal_conv", default=True) else 0
    return (
        *ernie_tower(source.quantization, vision),
        *resampler(merged, moments, root.integer("hidden_size")),
    )


def read_ernie(source: Source) -> ModelShape:
    """The decoder, and the list of tokens that mark images."""
    model = read(source, RECIPE)
    tokens = sum(name in source.root for name in TOKENS) if "im_patch_id" in source.root else 0
    marks = Tensor("visual_token_ids", TOWER, (Units(tokens),), element_bytes=LONG_BYTES, buffer=True)
    return replace(model, every_stage=(*model.every_stage, *((marks,) if tokens else ())))


READERS = {"Ernie4_5_VLMoeForConditionalGeneration": behind(towers, read_ernie, tied=Tied.TEXT)}
