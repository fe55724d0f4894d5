"""Which layer an operator belongs to."""

from __future__ import annotations

from attrs import define

from autoparallel_pytorch.graph import Graph
from autoparallel_pytorch.regions import Classes


@define(eq=False)
class Layers:
    """The layers of a graph, and who belongs to which."""

    of: list[int]
    """Per operator its layer's number, −1 outside of any."""
    n: int

    @classmethod
    def find(cls, graph: Graph, classes: Classes) -> Layers:
        """The modules of the largest repeated region."""
        names = max(classes.regions.values(), key=len, default=())
        number = {name: i for i, name in enumerate(names)}
        of = []
        for node in graph.nodes:
            module = node.name.partition("/")[0]
            found = -1
            while module:
                if module in number:
                    found = number[module]
                    break
                module = module.rpartition(".")[0]
            of.append(found)
        return cls(of, len(names))

    def weights(self, graph: Graph) -> list[int]:
        """Per operator the number of parameters of its layer; 1 outside of any."""
        counts = [0] * self.n
        for node in graph.parameters.values():
            if self.of[node] >= 0:
                counts[self.of[node]] += 1
        return [max(1, counts[x]) if x >= 0 else 1 for x in self.of]
