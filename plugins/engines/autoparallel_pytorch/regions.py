"""Repeated layers, found once and planned once: nodes that play the same part share a class.

A container of modules whose children are numbered (``layers.0``, ``layers.1``, …) repeats when children have equal node
lists: same operators, arguments, shapes and relative names, in the same order. A child counts as a layer only with two
matrices or more, so that the plain linear layers of a sequence may be sharded differently. All instances take the same
option; boundaries are edges between classes, with their number of occurrences, so the problem does not grow with depth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attrs import frozen

from autoparallel_pytorch.graph import Dtype, Graph, Node, Ref, Size, refs_in
from autoparallel_pytorch.local_regions import REGIONS

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=[./]|$)")


@frozen
class Classes:
    """``of[node]`` is the class of a node; classes are numbered in order of their first node."""

    of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    regions: Mapping[str, tuple[str, ...]]
    """``layers.*`` → the module names that are planned as one."""

    @property
    def n(self) -> int:
        return len(self.members)


def classes(graph: Graph, *, tie: bool = True) -> Classes:
    """The classes of all nodes; with ``tie`` False every node is its own."""
    regions = _regions(graph) if tie else {}
    canonical = {name: pattern for pattern, names in regions.items() for name in names}
    number: dict[tuple[object, ...], int] = {}
    of: list[int] = []
    members: list[list[int]] = []
    for node in graph.nodes:
        path = _canonical(_path(node), canonical)
        key: tuple[object, ...] = (path, node.op, _signature(node, graph), node.phase)
        if path == _path(node) and not node.placeholder:
            key = (*key, node.id)
        index = number.setdefault(key, len(members))
        if index == len(members):
            members.append([node.id])
        else:
            members[index].append(node.id)
        of.append(index)
    return Classes(tuple(of), tuple(tuple(m) for m in members), regions)


def _path(node: Node) -> str:
    return node.name


def _canonical(path: str, canonical: Mapping[str, str]) -> str:
    """The path with every repeated module's number replaced by its region's pattern, outermost first."""
    for match in _NUMBER.finditer(path):
        prefix = path[: match.end()]
        pattern = canonical.get(prefix)
        if pattern is not None:
            return _canonical(pattern + path[match.end() :], canonical)
    return path


def _regions(graph: Graph) -> dict[str, tuple[str, ...]]:
    inside: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for prefix in _prefixes(node.name):
            inside.setdefault(prefix, []).append(node)
    groups: dict[tuple[str, object], list[str]] = {}
    for prefix, nodes in inside.items():
        if sum(n.op == "parameter" and n.outs[0] is not None and len(n.outs[0].shape) > 1 for n in nodes) < 2:
            continue
        signature = tuple((n.name[len(prefix) :], n.op, _signature(n, graph)) for n in nodes)
        groups.setdefault((prefix.rpartition(".")[0], signature), []).append(prefix)
    found: dict[str, tuple[str, ...]] = {}
    for (container, _), names in groups.items():
        if len(names) > 1:
            same = sum(key.startswith(f"{container}.*") for key in found)
            found[f"{container}.*" + ("'" * same)] = tuple(names)
    return _outermost(found)


def _outermost(found: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Regions inside of a repeated module are kept once, under the name that the outer region gives them."""
    canonical = {name: pattern for pattern, names in found.items() for name in names}
    out: dict[str, tuple[str, ...]] = {}
    for pattern, names in found.items():
        container = pattern.rpartition(".")[0]
        renamed = _canonical(container, canonical)
        if renamed == container:
            out[pattern] = names
        else:
            last = pattern.rpartition(".")[2]
            out[f"{renamed}.{last}"] = tuple(f"{renamed}.{n.rpartition('.')[2]}" for n in names)
    return out


def _prefixes(name: str) -> list[str]:
    module = name.partition("/")[0]
    return [module[: m.end()] for m in _NUMBER.finditer(module)]


def _signature(node: Node, graph: Graph) -> object:
    """What equal nodes have in common: arguments without the tensors' names, and the tensors' shapes."""
    # A dropout's last argument counts the dropouts before it, so that each draws its own numbers.
    args = node.args[:2] if node.op == "autoparallel.dropout" else node.args
    if node.op in REGIONS:
        args = (graph.regions[args[0]].identity, *args[1:])
    return _shape(args, graph), tuple((k, _shape(v, graph)) for k, v in node.kwargs.items()), node.outs


def _shape(value: object, graph: Graph) -> object:
    if isinstance(value, Ref):
        return graph.meta(value)
    if isinstance(value, (Dtype, Size)):
        return value
    if isinstance(value, tuple):
        return tuple(_shape(v, graph) for v in value)
    return value


def multiplicity(classes: Classes, nodes: Sequence[Node]) -> dict[tuple[int, int, int, int], int]:
    """How often a node of class v reads output o of class u at its i-th tensor input: ``{(u, o, v, i): count}``."""
    count: dict[tuple[int, int, int, int], int] = {}
    for node in nodes:
        for i, ref in enumerate(refs_in((node.args, tuple(node.kwargs.values())))):
            key = (classes.of[ref.node], ref.out, classes.of[node.id], i)
            count[key] = count.get(key, 0) + 1
    return count
