"""In words a sales engineer can repeat: why, what is assumed, what to check, where each number comes from."""

from service.sizing.answer import Origin
from service.sizing.corrections import links_for, used_for
from service.sizing.evidence import HELD_OUT, Evidence, Known, evidence_of, kind_of
from service.sizing.fit import Measured
from service.sizing.hardware import Link
from service.sizing.judge import Feasible
from service.sizing.loaded_weights import quantises_unlisted
from service.sizing.outside import little_room_outside
from service.sizing.peopled import people_answer
from service.sizing.performance.link_tests import Kind
from service.sizing.performance.link_tests import Measured as MeasuredLinks
from service.sizing.pricing import offer_for, price_warnings
from service.sizing.promises import objectives_answer
from service.sizing.quantities import GIB, Basis, ceil_div
from service.sizing.topology import custom_all_reduce, nccl_p2p_disable
from service.sizing.working_space import era_of

MOST_NAMED = 10
"""Measured loads that an answer names."""


def gib(bytes_: float) -> str:
    """Bytes in GiB with one decimal."""
    return f"{bytes_ / GIB:.1f} GiB"


def reasons(found: Feasible) -> tuple[str, ...]:
    """How the memory works out, and why this split."""
    layout, tight = found.layout, found.settled.tight
    weights = found.settled.fitted.loaded[tight]
    band = found.settled.fitted.bands[tight]
    workload = found.question.workload
    budget = (
        f"of {gib(found.settled.usable_bytes)} usable on each GPU, weights take {gib(weights)} and working space "
        f"{gib(band.value)}: {gib(found.settled.rooms[tight])} are left for the cache"
    )
    in_flight = workload.people is not None or workload.requests_per_second is not None
    holds = (
        f"memory holds {found.capacity} conversations of {workload.context_tokens} tokens; "
        f"{workload.concurrent_sequences} {'are in flight at once' if in_flight else 'were asked for'}"
    )
    lines = [*_promises(found), budget, holds]
    if layout.tensor_parallel_size > 1:
        lines.append(
            f"tensor parallel over {layout.tensor_parallel_size} GPUs{_joined(found)} reads the weights together, so a "
            "token is faster"
        )
    if layout.pipeline_parallel_size > 1:
        lines.append(_why_pipeline(found))
    if layout.data_parallel_size > 1:
        how = "their experts spread over all GPUs" if found.question.model.experts else "each whole in itself"
        lines.append(f"{layout.data_parallel_size} copies share the load, {how}")
    if layout.expert_parallel:
        lines.append(f"whole experts are spread over {layout.expert_ranks} GPUs")
    if layout.decode_context_parallel_size > 1:
        lines.append("GPUs share the cache by tokens, which would otherwise be copied to each")
    return (*lines, *_measured_links(found))


def _promises(found: Feasible) -> list[str]:
    """Who makes the load, how the promises are kept, and what else would be."""
    lines, made, kept = list[str](), people_answer(found), objectives_answer(found)
    if made is not None:
        lines.append(made.how)
    if kept is None:
        return lines
    for name, promise in (("an output token", kept.tpot), ("the first token", kept.ttft)):
        if promise is not None:
            lines.append(
                f"{name} is predicted to take {promise.predicted_ms:.1f} ms; with the margin of {promise.margin:g} "
                f"that is {promise.with_margin_ms:.1f} ms of the {promise.promised_ms:g} ms promised"
            )
    used = "" if kept.utilisation is None else f"; what arrives is {kept.utilisation:.0%} of what is completed at most"
    lines.append(
        f"{kept.concurrent_sequences} requests at once, or {kept.requests_per_second:g} a second, can be carried "
        f"within what is promised{used}"
    )
    return lines


def _margins(found: Feasible) -> list[str]:
    """How often promises made with these margins were broken."""
    kept = objectives_answer(found)
    if kept is None:
        return []
    return [
        f"of {promise.measured_on}, {promise.over_promised_percent:g} % promised a shorter {name} than was kept with "
        f"the margin of {promise.margin:g}"
        for name, promise in (("time per output token", kept.tpot), ("time to first token", kept.ttft))
        if promise is not None
    ]


def _measured_times(found: Feasible) -> list[str]:
    """Which engine the measured loads that correct the times ran on, where it is not the plan's."""
    points = used_for(found).points
    if not points:
        return []
    version = found.question.engine.version or found.settled.fitted.cache.profile.version
    measured = sorted({point.version or "an unknown release" for point in points})
    if measured == [version]:
        return []
    return [f"times are corrected by measured loads of vLLM {', '.join(measured)}; the plan is for {version}"]


COLLECTIVES = {
    Kind.ALL_REDUCE: "the all-reduce of a layer",
    Kind.EXCHANGE: "the exchange of tokens between expert ranks",
    Kind.HANDOFF: "the handoff to the next stage of a node",
    Kind.HANDOFF_BETWEEN_NODES: "the handoff to the next node",
}


def _measured_links(found: Feasible) -> list[str]:
    """What link tests changed."""
    links = links_for(found)
    if links is None:
        return []
    return [
        f"by measured links {COLLECTIVES[each.kind]} takes {each.scale.start:.2f} times as long to start and moves "
        f"{each.scale.rate:.2f} times the bytes a second of usual ones"
        for each in links.found
    ]


def _network_is_measured(found: Feasible) -> bool:
    """Whether a link test tells of what passes between nodes."""
    links = links_for(found)
    return links is not None and any(each.between_nodes for each in links.found)


def _link_test_ids(links: MeasuredLinks) -> tuple[str, ...]:
    told = (each for moved in links.found for each in (moved.start, moved.rate) if each is not None)
    return tuple(dict.fromkeys(each.test.id for each in told))


def _joined(found: Feasible) -> str:
    """What joins the GPUs of a tensor parallel group, where one link joins all."""
    machine, tensor = found.machine, found.layout.tensor_parallel_size
    widest = machine.gpus_per_node if machine.link is Link.PCIE else machine.gpus_per_domain
    return f" joined by {machine.link.value}" if tensor <= widest else f", {machine.link.value} between some of them,"


def _why_pipeline(found: Feasible) -> str:
    """What a pipeline is good for where it runs."""
    stages, across = found.layout.pipeline_parallel_size, found.layout.gpu_count > found.machine.gpus_per_node
    if not across and found.machine.link is not Link.PCIE:
        return f"pipeline over {stages} stages: each holds its part of the layers, and a token passes through all"
    where = "nodes" if across else "cards without a fast link"
    return (
        f"pipeline over {stages} stages because little passes between {where}, where splitting every layer would wait "
        "for the link"
    )


def warnings(found: Feasible) -> tuple[str, ...]:
    """Assumptions that decide, and what to check."""
    question, cache = found.question, found.settled.fitted.cache
    lines = [*found.machine.warnings, *found.warnings, *cache.warnings, *cache.notes, *interconnect(found)]
    if question.engine.kv_cache_memory_bytes is None:
        lines += _working_space(found)
        usable, total = found.settled.usable_bytes, found.settled.total_bytes
        if little := little_room_outside(found.layout, total, usable):
            lines.append(little)
    length, own = found.settled.printed.max_model_len, question.model.default_context_tokens
    if found.settled.options.max_model_len != question.engine.max_model_len and length < own:
        lines.append(f"one request of the model's own {own} tokens does not fit: the flags limit it to {length}")
    sequences = found.settled.options.max_num_seqs
    if sequences not in (None, question.engine.max_num_seqs, found.sequences) and cache.keeps_state:
        lines.append(f"vLLM refuses more sequences than state blocks: the flags lower max_num_seqs to {sequences}")
    if cache.defaults.max_num_seqs < found.sequences:
        lines.append(
            f"a copy runs {cache.defaults.max_num_seqs} of its {found.sequences} conversations at once, as "
            "max_num_seqs says; the others wait"
        )
    if found.layout.gpu_count > found.machine.gpus_per_node and not _network_is_measured(found):
        lines.append("the plan spans nodes: the network between them is not modelled beyond an InfiniBand default")
    if found.layout.tensor_parallel_size > found.machine.gpus_per_node:
        lines.append("tensor parallel crosses nodes: every layer waits for the network")
    if quantises_unlisted(question.model):
        lines.append(
            "the configuration quantises parts that published checkpoints of this kind leave in 16 bits: 3 % were "
            "added to the weights; give the published configuration to have them counted"
        )
    lines += [*_margins(found), *_measured_times(found)]
    if question.precision not in ("checkpoint", "bf16"):
        lines.append(
            f"the plan is for a checkpoint of this model quantised to {question.precision}; the command names the "
            "original: put the quantised checkpoint's name in its place"
        )
    return (*lines, *price_warnings(found))


def evidence(found: Feasible) -> Evidence:
    """How well the working space of a plan is known."""
    return evidence_of(found.question.model, found.layout, found.machine.gpu, found.settled.fitted.release)


def _working_space(found: Feasible) -> tuple[str, ...]:
    """Where the working space comes from, how far it may be off, and what that decides."""
    band, measured = found.settled.fitted.bands[found.settled.tight], found.settled.fitted.measured
    if band.high <= band.low:
        return ()
    span = (
        f"{gib(band.low)} to {gib(band.high)}, {gib(band.value)} shown; the high end decides what fits, the flags and "
        "the capacity"
    )
    if measured is not None and measured.is_of_this_model:
        how = "copied from" if measured.match.distance == 0 else "corrected by"
        return (f"the working space is {how} a measured startup of vLLM {measured.match.point.version}: {span}",)
    known, error = evidence(found), f"measured error: {measured_error(found)}"
    if known.known is Known.FITTED:
        lines = (f"the working space is a prediction: {span}", error)
    elif known.known is Known.UNKNOWN:
        lines = (f"the working space is unknown, {span}: {known.why}; measure a startup before you rely on it", error)
    elif known.known is Known.LOW_CONFIDENCE:
        lines = (f"estimated at low confidence: the working space is {span}; {known.why}", error)
    else:
        lines = (f"the working space is extrapolated: {span}; {known.why}", error)
    return lines if measured is None else (*lines, _neighbour(found, measured))


def measured_error(found: Feasible) -> str:
    """How far predictions of memory were off in cases like this one."""
    settled = found.settled.fitted
    kind = kind_of(found.question.model, found.machine.gpu, settled.release)
    error = found.question.memory_errors.get(kind)
    if error is None:
        extrapolated = "" if era_of(settled.release).measured else "extrapolated, "
        return f"{extrapolated}no measurement ({kind})"
    several = "startups" if error.startups > 1 else "startup"
    said = (
        f"over {error.startups} measured {several} of such cases ({kind}) the predicted cache was off by "
        f"{error.median_percent:.1f} % in the median and {error.p90_percent:.1f} % in nine of ten"
    )
    if not era_of(settled.release).measured:
        return f"{said}; the formulas are extrapolated there"
    return (
        f"{said}; the formulas were fitted to most of these, and {HELD_OUT.startups} startups kept out of the fit were "
        f"off by {HELD_OUT.median_percent:.1f} % and {HELD_OUT.p90_percent:.1f} %"
    )


def _neighbour(found: Feasible, measured: Measured) -> str:
    """What a startup of another model added."""
    point, tight = measured.match.point, found.settled.tight
    moved = found.settled.fitted.bands[tight].value - measured.predicted.bands[tight].value
    return (
        f"{moved / GIB:+.2f} GiB of the working space follow a measured startup of another model, {point.model}, on "
        f"the same GPU and vLLM {point.version}, at distance {measured.match.distance:.1f}: half of what was missed "
        f"there, 0.3 GiB at most; without it {gib(measured.predicted.bands[tight].value)} would be shown"
    )


def devices(found: Feasible) -> tuple[int, ...] | None:
    """GPUs of a pasted machine in the order to make visible: each tensor parallel group together; None without one."""
    topology, layout = found.machine.topology, found.layout
    if topology is None:
        return None
    chosen = list[int]()
    for _ in range(layout.pipeline_parallel_size * layout.data_parallel_size):
        free = [gpu for gpu in topology.gpus if gpu not in chosen]
        chosen += topology.devices_for(layout.tensor_parallel_size, free)
    return tuple(chosen)


def environment(found: Feasible) -> dict[str, str]:
    """Environment variables the plan needs: on a pasted machine, which GPUs in which order."""
    visible = devices(found)
    return {} if visible is None or found.machine.topology is None else found.machine.topology.visible_devices(visible)


def interconnect(found: Feasible) -> tuple[str, ...]:
    """What a pasted machine's links mean for this layout."""
    topology, visible = found.machine.topology, devices(found)
    tensor = found.layout.tensor_parallel_size
    if topology is None or visible is None or tensor == 1:
        return ()
    group = visible[:tensor]
    verdict, advice = custom_all_reduce(topology, group), nccl_p2p_disable(topology, group)
    state = {True: "on", False: "off", None: "on or off (the paste does not tell)"}[verdict.enabled]
    lines = [f"vLLM's own all-reduce is {state}: {verdict.reason}"]
    if advice.helps is not False:
        lines.append(f"NCCL_P2P_DISABLE=1 helps {advice.reason}; {advice.cost}")
    return tuple(lines)


def checklist(found: Feasible) -> tuple[str, ...]:
    """What to verify before buying."""
    question, layout, tight = found.question, found.layout, found.settled.tight
    model = question.model
    kept = found.needed_bytes // found.sequences if found.sequences else 0
    domain = found.machine.gpus_per_domain
    link = found.machine.link
    joined = (
        f"tensor parallel {layout.tensor_parallel_size} stays inside one {link.value} domain of {domain}"
        if 1 < layout.tensor_parallel_size <= domain
        else f"tensor parallel {layout.tensor_parallel_size} runs over {link.value}, outside any fast domain"
        if layout.tensor_parallel_size > 1
        else "no layer is split, so the link between GPUs hardly matters"
    )
    divides = (
        f"what divides: {model.attention_heads} attention heads over {layout.tensor_parallel_size} GPUs, "
        f"{len(model.layers)} layers over {layout.pipeline_parallel_size} stages"
    )
    return (
        f"weights at this precision: {gib(found.settled.fitted.loaded[tight])} on each GPU",
        f"cache of one conversation of {question.workload.context_tokens} tokens: {gib(kept)} on each GPU",
        f"minimum count: {ceil_div(layout.gpu_count, layout.data_parallel_size)} GPUs hold one copy",
        divides,
        joined + ("; check it with nvidia-smi topo -m" if link is Link.NVLINK and layout.gpu_count > 1 else ""),
        "load test with your own prompts before you promise times",
    )


def basis(found: Feasible) -> dict[str, Origin]:
    """Where each figure comes from, by its path in the plan."""
    given, measured = found.question.assumptions, found.settled.fitted.measured
    if measured is not None and not measured.is_of_this_model:
        measured = None
    version = found.settled.fitted.cache.profile.version

    def origin(kind: Basis, source: str) -> Origin:
        return Origin(kind.value, source)

    planner = origin(Basis.COMPUTED, f"vLLM {version} KV cache planner, restated")
    return {
        "memory.total_bytes": origin(Basis.GIVEN, "assumptions.gpu_memory_gib")
        if given.gpu_memory_bytes is not None
        else origin(Basis.CATALOGUE, f"GET /gpus/{found.machine.gpu.slug}: memory_total_gib"),
        "memory.usable_bytes": origin(
            Basis.COMPUTED, f"total x {found.settled.fitted.cache.defaults.gpu_memory_utilization:g}, rounded up"
        ),
        "memory.weights_bytes": origin(Basis.MEASURED, f"GET /calibrations/{measured.match.point.id}")
        if measured is not None
        else origin(Basis.COMPUTED, f"parameters and buffers as vLLM {version} builds them{_beyond(found)}"),
        "memory.working_space_bytes": origin(Basis.GIVEN, "assumptions.working_space_gib")
        if given.working_space_bytes is not None
        else origin(Basis.MEASURED, f"GET /calibrations/{measured.match.point.id}")
        if measured is not None
        else _predicted_space(found),
        "memory.kv_cache_room_bytes": origin(Basis.GIVEN, "engine.kv_cache_memory_bytes")
        if found.question.engine.kv_cache_memory_bytes is not None
        else origin(Basis.COMPUTED, "usable - weights - working space"),
        "memory.kv_cache_needed_bytes": planner,
        "kv_cache": planner,
        "capacity.concurrent_sequences": origin(
            Basis.COMPUTED, "blocks at the pessimistic working space over blocks a conversation keeps, times copies"
        ),
        "latency.weight_read_ms": origin(Basis.COMPUTED, "active parameter bytes over rated bandwidth x fraction"),
        "latency.tpot_ms": _times_origin(found),
        "latency.ttft_ms": _times_origin(found),
        "throughput": _times_origin(found),
    } | _price_origin(found)


def _times_origin(found: Feasible) -> Origin:
    """Where times and throughput come from."""
    used, links = used_for(found), links_for(found)
    sources = list[str]()
    if used.points:
        ids = ", ".join(point.id for point in used.points[:MOST_NAMED])
        sources.append(f"{used.correction.tier.value}: {ids}")
    if links is not None:
        sources.append(f"measured links: {', '.join(_link_test_ids(links))}")
    if not sources:
        return Origin(Basis.COMPUTED.value, "performance model fitted to public serving measurements")
    return Origin(Basis.MEASURED.value, f"performance model corrected by {'; '.join(sources)}")


def _price_origin(found: Feasible) -> dict[str, Origin]:
    """Where the price comes from, if there is one."""
    priced = offer_for(found)
    if priced is None:
        return {}
    offer, _ = priced
    machine = offer.instance_type or found.machine.gpu.slug
    seen = f"{offer.provider} {machine}, {offer.kind}, seen on {offer.observed_on}: {offer.source}"
    return {"cost": Origin(Basis.CATALOGUE.value, seen)}


def _beyond(found: Feasible) -> str:
    """What the loaded weights hold beside parameters and buffers."""
    tight = found.settled.tight
    extra = found.settled.fitted.loaded[tight] - found.settled.fitted.weights[tight].total_bytes
    return f", and {gib(extra)} of copies and padding" if extra else ""


def _predicted_space(found: Feasible) -> Origin:
    """Where a predicted working space comes from, and how far such predictions were off."""
    known, measured = evidence(found), found.settled.fitted.measured
    moved = f"; GET /calibrations/{measured.match.point.id}" if measured is not None else ""
    error = f"{moved}; measured error: {measured_error(found)}"
    if known.known is Known.FITTED:
        return Origin(Basis.COMPUTED.value, f"formula fitted to public startups of this era of vLLM{error}")
    return Origin(Basis.ASSUMED.value, f"{known.known.value.replace('_', ' ')}: {known.why}{error}")
