"""Plans of tensor parallelism as users write them: which layers are split over an axis of a mesh, and how."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from monarch_nb._rank.tensor.tensor_parallel import GATHERED, STYLES
from monarch_nb.exceptions import MeshUsageError

TENSOR_AXES = ("tp", "tensor", "model")
PLAIN_FORWARDS = (nn.Linear.forward, nn.Embedding.forward)
ALIASES = {
    "colwise_rep": GATHERED, "embedding_rowwise": "rowwise", "embedding_colwise": GATHERED, "replicate": "",
    "ColwiseParallel": "colwise", "RowwiseParallel": "rowwise",
}  # fmt: skip
"""Other words for styles, such as those of transformers; "": the layer stays whole."""


def checked_plan(module: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """Return a user's plan with a style for each layer.

    Args:
        plan: style by path; `*` in a path stands for any one name.

    Raises:
        MeshUsageError: for a path or a style that isn't known, and a layer that can't be split.
    """
    if not isinstance(plan, Mapping) or not plan:
        raise MeshUsageError(f'tp_plan says how layers are split, as in {{"up": "colwise"}}; not {plan!r}')
    found: dict[str, str] = {}
    for pattern, word in plan.items():
        style = _style(word)
        layers = matching(module, pattern)
        if not layers:
            near = _nearest(pattern, dict(module.named_modules()))
            raise MeshUsageError(f"tp_plan: the module has no layer {pattern!r}{near}")
        for path in layers:
            layer = module.get_submodule(path)
            if style in STYLES[:3] and not is_splittable(layer):
                raise MeshUsageError(
                    f"tp_plan: {path} is a {type(layer).__name__}; 'colwise' and 'rowwise' are for nn.Linear "
                    "and nn.Embedding"
                )
            found[path] = style
    return {path: style for path, style in found.items() if style}


def _style(word: Any) -> str:
    name = word if isinstance(word, str) else type(word).__name__
    style = ALIASES.get(name, name)
    if style and style not in STYLES:
        known = ", ".join(map(repr, STYLES))
        raise MeshUsageError(f"tp_plan: a style is one of {known}; not {name!r}{_nearest(name, STYLES)}")
    return style


def _nearest(name: Any, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), [_starred(each) for each in names if each], 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _starred(path: str) -> str:
    return re.sub(r"(^|\.)\d+(?=\.)", r"\1*", path)


def matching(module: nn.Module, pattern: Any) -> list[str]:
    """Return the paths of a module's layers that a pattern stands for."""
    if not isinstance(pattern, str):
        return []
    form = re.compile(r"\.".join(re.escape(part).replace(r"\*", r"[^.]*") for part in pattern.split(".")))
    return [path for path, _ in module.named_modules() if path and form.fullmatch(path)]


def is_splittable(layer: nn.Module) -> bool:
    """Say whether torch's styles know what a layer does: Linear and Embedding as torch has them."""
    is_plain = isinstance(layer, (nn.Linear, nn.Embedding)) and type(layer).forward in PLAIN_FORWARDS
    has_more = "forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks
    return is_plain and not has_more and set(dict(layer.named_parameters())) <= {"weight", "bias"}
