"""Taking a fix at its word: the request that it asks for."""

import copy
import re
from collections.abc import Iterator
from typing import Any

Body = dict[str, Any]

SIZES = ("tensor", "pipeline", "data", "decode context")
ADVICE = ("choose a GPU", "choose an NVIDIA", "choose a Hopper", "choose another", "a checkpoint", "use a checkpoint")
SEPARATE = re.compile(r", or ")
STEP = "(?=use |ask |send |plan |promise |leave |choose |spread |run )"
TOGETHER = re.compile(f"(?<!_size 1) and {STEP}|, {STEP}")


def followed(body: Body, gpu: str, count: int, fix: str) -> Iterator[tuple[str, Body]]:
    """Every alternative of a fix, and the requests that follow it; none of one that only names other hardware."""
    asked = copy.deepcopy(body)
    hardware = asked.setdefault("hardware", {})
    hardware["gpus"] = [gpu]
    if "layout" not in asked:
        hardware.pop("max_gpus", None)
        hardware["gpu_counts"] = [count]
    for way in SEPARATE.split(fix):
        if way.startswith(ADVICE):
            continue
        requests = [asked]
        for step in TOGETHER.split(way):
            requests = [changed for request in requests for changed in _changed(copy.deepcopy(request), step)]
        yield from ((way, request) for request in requests)


def _changed(body: Body, step: str) -> list[Body]:
    workload, hardware = body["workload"], body["hardware"]
    if found := re.fullmatch(r"use (\d+) GPUs?(?: \((.*)\))?", step):
        return _on(body, int(found[1]), found[2])
    if found := re.fullmatch(r"leave the layout out: (\d+) GPUs?(?: \((.*)\))? would serve", step):
        return _on(body, int(found[1]), found[2])
    if found := re.fullmatch(
        r"leave hardware.topology out: (\d+) GPUs?(?: \((.*)\))? of the usual machines would serve", step
    ):
        hardware.pop("topology")
        return _on(body, int(found[1]), found[2])
    if found := re.fullmatch(r"choose ((?:\w+ 1 and )*)a ([a-z ]+) parallel size from ([\d, ]+)", step):
        body["layout"] |= dict.fromkeys(re.findall(r"(\w+) 1 and", found[1]), 1)
        name = f"{found[2].replace(' ', '_')}_parallel_size"
        return [body | {"layout": body["layout"] | {name: int(size)}} for size in found[3].split(", ")]
    if found := re.fullmatch(r"run (\d+) deployments of \d+ GPUs? side by side", step):
        workload["requests_per_second"] /= int(found[1])
    elif step == "spread whole experts with expert_parallel":
        body["layout"]["expert_parallel"] = True
    elif step == "leave expert_parallel false":
        body["layout"]["expert_parallel"] = False
    elif found := re.fullmatch(r"use vLLM (\S+)", step):
        body.setdefault("engine", {})["version"] = found[1]
    elif found := re.fullmatch(r"use --([a-z-]+) (\S+)( or less| or more)?", step):
        _set(body, f"--{found[1]}", found[2])
    elif found := re.fullmatch(r"leave (.+) out", step):
        for field in found[1].split(", "):
            _set(body, field, None)
    elif found := re.fullmatch(
        r"ask for at most (\d+) tokens(?: \((.*)\))?(?: and (\d+) conversations?(?: or fewer)?)?", step
    ):
        workload["context_tokens"] = int(found[1])
        workload |= {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", found[2] or "")}
        if found[3]:
            workload["concurrent_sequences"] = int(found[3])
    elif found := re.fullmatch(r"ask for (?:at most )?(\d+) (?:conversations?|concurrent sequences)( or fewer)?", step):
        workload["concurrent_sequences"] = int(found[1])
    elif found := re.fullmatch(r"plan for at most (\d+) people", step):
        workload["people"] = workload["people"] | {"people": int(found[1])}
    elif found := re.fullmatch(r"send at most (\S+) requests a second", step):
        workload["requests_per_second"] = float(found[1])
    elif step.startswith("promise "):
        body["objectives"] = {name: float(value) for name, value in re.findall(r"a (\w+) of (\S+)", step)}
    else:
        raise AssertionError(f"not understood: {step}")
    return [body]


def _on(body: Body, count: int, sizes: str | None) -> list[Body]:
    """The request for a count, and for the layout named with it."""
    layout: dict[str, Any] = {
        f"{name.replace(' ', '_')}_parallel_size": int(found[1])
        for name in SIZES
        if (found := re.search(rf"(?<![a-z] ){name} parallel size (\d+)", sizes or ""))
    }
    layout["expert_parallel"] = "expert parallel" in (sizes or "")
    hardware = {name: value for name, value in body["hardware"].items() if name not in ("max_gpus", "gpu_counts")}
    counted = {name: value for name, value in body.items() if name != "layout"}
    return [
        counted | {"hardware": hardware | {"gpu_counts": [count]}},
        body | {"hardware": hardware, "layout": layout},
    ]


def _set(body: Body, field: str, value: str | None) -> None:
    if field == "objectives":
        body.pop("objectives")
        return
    group, _, name = ("engine", "", field[2:].replace("-", "_")) if field[:2] == "--" else field.partition(".")
    where = body if name == "kv_cache_dtype" else body.setdefault(group, {})
    if value is None:
        where.pop(name, None)
    else:
        where[name] = value if name == "kv_cache_dtype" else float(value) if "." in value else int(value)
