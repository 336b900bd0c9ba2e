"""PLaMo 3: sliding windows between full layers, a rotary table for each, four norms a layer.

Source: vLLM 0.33 `model_executor/models/plamo3.py`.
"""

from dataclasses import replace

from service.sizing.model.families.dense import EVERYWHERE, FUSED_GATE, FUSED_QKV
from service.sizing.model.families.llama import read, read_attention
from service.sizing.model.families.recipe import HeadNorms, Names, Recipe
from service.sizing.model.fields import Fields
from service.sizing.model.rope import rotary_table, settings_key, used_by
from service.sizing.model.shape import ModelShape, RopeTable
from service.sizing.model.source import SLIDING_ATTENTION, Source

PLAMO3 = Recipe(
    names=Names(layers="model.layers.layers", attention="mixer", queries=FUSED_QKV, mlp=FUSED_GATE),
    head_norms=HeadNorms.HEAD,
    norms=("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm"),
    tied=True,
    quantised_embedding=False,
    quantised_head=False,
    rotary=False,
    mixed_windows=True,
    everywhere=EVERYWHERE,
)
HEAD_MULTIPLE = 16
"""What the class pads the rows of a head of its own up to, before the padding of every vocabulary table."""

SHORTER_TABLES = "buffer bytes are those of the longest context: a shorter max_model_len makes rotary tables shorter"


def listed_windows(source: Source) -> Source:
    """The windows that `interleaved_sliding_window` lists, which must agree with `layer_types`."""
    text, name = source.text, "interleaved_sliding_window"
    layers = text.layers("num_hidden_layers")
    listed, kinds = text.items(name), text.texts("layer_types")
    if listed is None or len(listed) != layers:
        raise source.invalid(name, f"{name} must have a window or null for each of the {layers} layers")
    if kinds is None or [kind == SLIDING_ATTENTION for kind in kinds] != [bool(window) for window in listed]:
        raise source.invalid("layer_types", f"layer_types must call those layers sliding that {name} gives a window")
    windows = {window for window in listed if window}
    if len(windows) > 1 or not all(isinstance(window, int) for window in windows):
        raise source.refuse(name, because="windows of several sizes are not known")
    return source.overridden({"sliding_window": next(iter(windows), None)})


def rotary_tables(source: Source, size: int) -> tuple[RopeTable, ...]:
    """The tables of full and of sliding layers, which are one where their settings are the same."""
    text, kinds = source.text, source.text.texts("layer_types") or []
    rope = source.rope() or Fields({}, "rope_parameters")
    own = {"rope_type": "default", "rope_theta": text.number("rope_theta", default=10000.0), **rope.values}
    local = {"rope_type": "default", "rope_theta": text.number("rope_local_theta", default=10000.0)}
    tables = dict[str, tuple[object, RopeTable]]()
    for kind in dict.fromkeys(kinds):
        plain = Fields(local if kind == SLIDING_ATTENTION else own, rope.path)
        settings = rope.child(kind) or plain
        table = rotary_table(source, size, settings=settings)
        if table is None:
            raise source.refuse(settings.path, because="its rotary scaling is not understood")
        tables[kind] = settings_key(settings), table
    return used_by(kinds, tables)


def read_plamo3(source: Source) -> ModelShape:
    """PLaMo 3."""
    source = listed_windows(source)
    if source.text.integer("vocab_size") % HEAD_MULTIPLE and not source.tied(default=True):
        raise source.refuse("vocab_size", because=f"a head of rows that {HEAD_MULTIPLE} does not divide is not known")
    model = read(source, PLAMO3)
    tables = rotary_tables(source, read_attention(source).head_size)
    return replace(model, rope_tables=tables, notes=(*model.notes, SHORTER_TABLES))


READERS = {"Plamo3ForCausalLM": read_plamo3}
