"""RADIO, the tower of NVIDIA's Nemotron models.

Source: vLLM 0.33 `model_executor/models/radio.py`, `intern_vit.py`, `transformers_utils/configs/radio.py`.
"""

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.towers.intern_vit import norm_bias
from service.sizing.model.towers.parts import TOWER, layer_norm, tower_linear, tower_query_key_value

SIZES = {
    "vit_small_patch16_224": (384, 12, 6, 1536),
    "vit_base_patch16_224": (768, 12, 12, 3072),
    "vit_large_patch16_224": (1024, 24, 16, 4096),
    "vit_huge_patch16_224": (1280, 32, 16, 5120),
    "vit_so400m_patch16_224": (1152, 27, 16, 4304),
}
"""Hidden size, layers, heads and width of each named tower."""

PATCH_SIZE, LARGEST_IMAGE = 16, 2048
INDEX_BYTES = 8


def radio_hidden_size(vision: Fields) -> int:
    """The hidden size of the tower that `vision_config.args.model` names."""
    return named_sizes(vision)[0]


def named_sizes(vision: Fields) -> tuple[int, int, int, int]:
    """Hidden size, layers, heads and width."""
    settings = arguments(vision)
    name = settings.text("model")
    if name not in SIZES:
        field = settings.named("model")
        raise NotUnderstood((field,), f"{field} must be one of {', '.join(SIZES)}, not {name!r}")
    return SIZES[name]


def arguments(vision: Fields) -> Fields:
    """What the tower was trained with."""
    settings = vision.child("args")
    if settings is None:
        raise InvalidConfig(vision.named("args"), f"{vision.named('args')} is missing: give the tower's arguments")
    return settings


def teachers(settings: Fields) -> list[Fields]:
    """The models the tower was distilled from."""
    given = settings.items("teachers") or []
    listed = Fields({str(index): value for index, value in enumerate(given)}, settings.named("teachers"))
    return [teacher for index in range(len(given)) if (teacher := listed.child(str(index))) is not None]


def prefix_tokens(settings: Fields) -> int:
    """Class tokens, one a teacher or one, made up with registers to a multiple."""
    names = {teacher.text("name") for teacher in teachers(settings)}
    classes = len(names) if settings.flag("cls_token_per_teacher", default=False) else 1
    multiple = settings.integer("register_multiple", default=0, minimum=0)
    return classes + (multiple - classes % multiple if multiple else 0)


def radio_tower(vision: Fields) -> tuple[Module, ...]:
    """RADIO, never quantised; ranks that do not divide its heads hold attention whole."""
    settings, plain = arguments(vision), NotQuantised()
    hidden, layers, heads, width = named_sizes(vision)
    patch, size = vision.integer("patch_size", default=PATCH_SIZE), hidden // heads
    frames = vision.integer("video_temporal_patch_size", default=1)
    side = round(settings.integer("cpe_max_size", default=LARGEST_IMAGE) / patch)
    summaries = sum(teacher.flag("use_summary", default=True) for teacher in teachers(settings))
    head_norms = 2 * hidden if settings.flag("qk_normalization", default=False) else 0
    bias = norm_bias(settings.completed({"norm_type": "layer_norm"}))
    layer = (
        tower_query_key_value(
            plain,
            "",
            "qkv",
            hidden,
            heads,
            size,
            bias=settings.flag("qkv_bias", default=True),
            split_units=heads,
        ),
        tower_linear(plain, "", "proj", Units(heads, size), hidden, Split.ROW, bias=True, split_units=heads),
        tower_linear(plain, "", "fc1", hidden, width, Split.COLUMN, bias=True),
        tower_linear(plain, "", "fc2", width, hidden, Split.ROW, bias=True),
        layer_norm("norms", 2 * hidden, bias=bias),
        Tensor("head_norms_and_scales", TOWER, (Units(head_norms + 2 * hidden),)),
    )
    modules: list[Module] = [
        Tensor("embedder", TOWER, (Units(hidden),), columns=3 * patch * patch),
        Tensor("pos_embed", TOWER, (Units(side * side),), columns=hidden),
        Tensor("cls_token", TOWER, (Units(prefix_tokens(settings)),), columns=hidden),
    ]
    if frames > 1:
        modules.append(Tensor("video_embedder", TOWER, (Units(hidden),), columns=3 * frames * patch * patch))
    if summaries:
        modules.append(Tensor("summary_idxs", TOWER, (Units(summaries),), element_bytes=INDEX_BYTES, buffer=True))
    return (*modules, *(layer * layers))
