"""Plans of tensor parallelism: a model's own, or found by following a forward.

A plan that is found splits layers whose results one other layer takes: the first ones by columns, that one by
rows. A list of them is a guess; `tensor_proof` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from monarch_nb._parallel.dry.following import Shared
from monarch_nb._parallel.dry.local import LocalRun
from monarch_nb._parallel.dry.runner import DryRunner
from monarch_nb._parallel.tensor_proof import Proof, Prover, Unproven
from monarch_nb._rank.tensor.protocol import Divided
from monarch_nb._rank.tensor.tensor_parallel import STYLES
from monarch_nb._tensor.plans import ALIASES, is_splittable, matching

MOST_LAYERS = 8
"""Layers of one parent among which pairs are looked for."""
MOST_COLUMNS = 3
"""Layers that give one other its input: queries, keys and values."""


# --- the model's own


def models_plan(module: nn.Module) -> tuple[dict[str, str], str]:
    """Return the plan that a model of transformers brings, and why it can't be used; ({}, "") if it has none.

    Its layers' plans are `_tp_plan`, that of the base model is `config.base_model_tp_plan`.
    """
    plan: dict[str, str] = {}
    for path, layer in module.named_modules():
        for rel, word in _own_plan(layer).items():
            pattern = f"{path}.{rel}" if path else rel
            style = ALIASES.get(str(word), str(word))
            layers = matching(module, pattern)
            if layers and style and style not in STYLES:
                return {}, f"its own plan has {rel!r} as {word!r}, which isn't known here"
            odd = [
                each
                for each in layers
                if style in STYLES[:3] and not is_splittable(module.get_submodule(each))
            ]
            if odd:
                kind = type(module.get_submodule(odd[0])).__name__
                return {}, f"its own plan splits {odd[0]}, and a {kind} can't be split"
            plan.update({each: style for each in layers if style})
    return plan, ""


def _own_plan(layer: nn.Module) -> Mapping[str, str]:
    """Return the plan that a layer has for those in it, by paths from there."""
    if not hasattr(type(layer), "base_model_prefix"):
        return {}
    own = {**(type(layer).__dict__.get("_tp_plan") or {}), **(layer.__dict__.get("_tp_plan") or {})}
    if layer is getattr(layer, "base_model", None):
        config: Any = getattr(layer, "config", None)
        own = {**(getattr(config, "base_model_tp_plan", None) or {}), **own}
    return own


# --- the number of heads


def head_counts(layer: nn.Module) -> dict[str, int]:
    """Return attributes that say how many heads a layer has.

    >>> layer = nn.Module(); layer.num_heads, layer.head_dim = 4, 8
    >>> head_counts(layer)
    {'num_heads': 4}
    """
    names = (n for n, v in vars(layer).items() if type(v) is int and v > 0 and "head" in n.lower())
    return {n: vars(layer)[n] for n in names if not any(w in n.lower() for w in ("dim", "size", "width"))}


def _divided(module: nn.Module, path: str, num_parts: int) -> list[Divided]:
    counts = head_counts(module.get_submodule(path))
    if any(each % num_parts for each in counts.values()):
        return []
    return [Divided(path, name, value // num_parts) for name, value in counts.items()]


def prove_plan(
    prover: Prover,
    styles: Mapping[str, str],
    args: Any,
    kwargs: Any,
    rows: int,
    known: Sequence[Divided] = (),
) -> Proof:
    """Return the proof of a plan, with the number of heads divided where nothing else is right.

    Raises:
        Unproven: see `Prover.prove`; of layers whose heads can't be divided that's the reason.
        CantFollow: see there.
    """
    divided = list(known)
    parents = {path.rpartition(".")[0] for path in styles}
    while True:
        try:
            return prover.prove(styles, divided, args, kwargs, rows)
        except Unproven as error:
            at = _parent_of(error.path, parents)
            more = _more(prover, at, parents, {each.path for each in divided})
            if not more:
                raise _about_heads(error, prover, at) from None
            divided += more


def _parent_of(path: str, parents: set[str]) -> str | None:
    """Return the layer with split ones in it at which a proof has failed."""
    if path in parents:
        return path
    above = path.rpartition(".")[0]
    return above if above in parents else None


def _more(prover: Prover, at: str | None, parents: set[str], done: set[str]) -> list[Divided]:
    if at is None:
        candidates = parents
    else:
        kind = type(prover.module.get_submodule(at))
        candidates = {p for p in parents if type(prover.module.get_submodule(p)) is kind}
    todo = sorted(candidates - done)
    return [each for path in todo for each in _divided(prover.module, path, prover.num_parts)]


def _about_heads(error: Unproven, prover: Prover, at: str | None) -> Unproven:
    counts = {} if at is None else head_counts(prover.module.get_submodule(at))
    odd = {name: n for name, n in counts.items() if n % prover.num_parts}
    if not odd:
        return error
    name, number = next(iter(odd.items()))
    return Unproven(
        at or "", f"its {number} heads ({name}) can't be divided by {prover.num_parts} ranks"
    )  # fmt: skip


# --- finding one


class _Calls(LocalRun):
    """The forward as one rank sees it, and what is called in it, in which order."""

    def __init__(self, shared: Shared, whole: Sequence[str], rows: int) -> None:
        super().__init__(shared, whole, rows)
        self.order: dict[str, tuple[Any, Any]] = {}

    def enter(self, path: str, args: Any, kwargs: Any) -> None:
        self.order.setdefault(path, pytree.tree_map(_shape, (args, kwargs)))


def _shape(value: Any) -> Any:
    """Return a tensor without values, which wants a gradient if it can."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return made.requires_grad_(value.dtype.is_floating_point)


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers that are split together."""

    parent: str
    styles: tuple[tuple[str, str], ...]
    divided: tuple[Divided, ...]


def find_plan(prover: Prover, args: Any, kwargs: Any, rows: int) -> Proof:
    """Find which layers can be split, by following a forward.

    Raises:
        Unproven: if there are none.
        CantFollow: for a forward that can't be followed.
    """
    runner = DryRunner(prover.module, prover.num_data)
    calls = _Calls(runner, prover.whole, rows)
    runner.run_in(calls, args, kwargs)
    groups = list(_groups(prover, calls.order))
    while groups:
        styles = {path: style for each in groups for path, style in each.styles}
        try:
            return prover.prove(styles, [d for each in groups for d in each.divided], args, kwargs, rows)
        except Unproven as error:
            fewer = [each for each in groups if not _is_in(error.path, each.parent)]
            groups = fewer if len(fewer) < len(groups) else []
    raise Unproven(
        "", "no two layers are found of which the second takes what the first gives, and nothing else"
    )


def _is_in(path: str, parent: str) -> bool:
    return not parent or path == parent or path.startswith(f"{parent}.")


def _groups(prover: Prover, order: Mapping[str, tuple[Any, Any]]) -> Iterator[_Group]:
    """Find groups among layers that are called, deepest parents first."""
    module = prover.module
    called = ((path, module.get_submodule(path)) for path in order)
    linear = [path for path, each in called if isinstance(each, nn.Linear) and is_splittable(each)]
    parents = sorted({above for p in linear for above in _above(p) if above in order}, key=_depth)
    used: set[str] = set()
    known: dict[Any, list[_Group]] = {}
    for parent in reversed(parents):
        inside = [p for p in linear if p not in used and _is_in(p, parent)]
        if not 1 < len(inside) <= MOST_LAYERS:
            continue
        key = _alike(module, parent, inside)
        if key not in known:
            known[key] = list(_groups_in(prover, parent, inside, order[parent]))
        for each in known[key]:
            moved = _moved(each, parent)
            used.update(path for path, _ in moved.styles)
            yield moved


def _depth(path: str) -> tuple[int, str]:
    return (path.count(".") + 1 if path else 0), path


def _above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts))]


def _alike(module: nn.Module, parent: str, inside: Sequence[str]) -> Any:
    """Return what is equal for parents in which the same layers can be split."""
    layer = module.get_submodule(parent)
    layers = [module.get_submodule(path) for path in inside]
    start = len(parent) + 1 if parent else 0
    return type(layer), tuple(head_counts(layer).items()), tuple(
        (path[start:], each.in_features, each.out_features) for path, each in zip(inside, layers, strict=True)
    )  # fmt: skip


def _moved(group: _Group, parent: str) -> _Group:
    def there(path: str) -> str:
        rel = path[len(group.parent) + 1 :] if group.parent else path
        return ".".join(part for part in (parent, rel) if part)

    return _Group(
        parent,
        tuple((there(path), style) for path, style in group.styles),
        tuple(Divided(there(each.path) if each.path != group.parent else parent, each.attribute, each.value)
              for each in group.divided),
    )  # fmt: skip


def _groups_in(
    prover: Prover, parent: str, inside: Sequence[str], called: tuple[Any, Any]
) -> Iterator[_Group]:
    """Find groups among the layers of one parent, in the order in which they're called."""
    layer = prover.module.get_submodule(parent)
    alone = Prover(layer, prover.num_parts)
    start = len(parent) + 1 if parent else 0
    names = [path[start:] for path in inside]
    at = 0
    while at < len(names) - 1:
        found = _first_proven(alone, names, at, called)
        if found is None:
            at += 1
            continue
        styles, proof = found
        yield _Group(
            parent,
            tuple((".".join(p for p in (parent, name) if p), style) for name, style in styles.items()),
            tuple(Divided(".".join(p for p in (parent, d.path) if p), d.attribute, d.value)
                  for d in proof.plan.divided),
        )  # fmt: skip
        at += len(styles)


def _first_proven(
    alone: Prover, names: Sequence[str], at: int, called: tuple[Any, Any]
) -> tuple[dict[str, str], Proof] | None:
    for num in range(1, MOST_COLUMNS + 1):
        chosen = names[at : at + num + 1]
        if len(chosen) <= num or not _fit([alone.module.get_submodule(n) for n in chosen], alone.num_parts):
            continue
        styles = {**dict.fromkeys(chosen[:-1], "colwise"), chosen[-1]: "rowwise"}
        for divided in ([], _divided(alone.module, "", alone.num_parts)):
            try:
                return styles, alone.prove(styles, divided, *called, rows=-1)
            except Exception:
                continue
    return None


def _fit(layers: Sequence[Any], num_parts: int) -> bool:
    *columns, last = layers
    return (
        len({each.in_features for each in columns}) == 1
        and any(each.out_features == last.in_features for each in columns)
        and all(each.out_features % num_parts == 0 for each in columns)
    )
