"""How a pipeline is run: micro-batches, stages per rank, what each stage keeps, and how long a step takes.

The step of a 1F1B schedule with stage times T takes ``Σ T + (m − 1)·max T`` for m micro-batches; with v stages on each of p
ranks the pipeline fills faster: ``m·v·max T + (p − 1)/(p·v)·Σ T`` (Narayanan et al., arXiv 2104.04473, section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.module_plan import ModuleRequest

SCHEDULES = ("1f1b", "gpipe", "interleaved")


@frozen
class Pipelining:
    """What the pipeline is: ``ranks`` in a row, each with ``per_rank`` stages, and the micro-batches of a step."""

    ranks: int
    per_rank: int
    micro_batches: int
    schedule: str

    @classmethod
    def of(cls, request: ModuleRequest, batch: int | None) -> Pipelining:
        """Raises SpecError when an option is wrong, or the batch does not go into the micro-batches."""
        ranks = request.mesh_sizes[0]
        schedule = str(request.options.get("schedule", "1f1b")).lower()
        if schedule not in SCHEDULES:
            raise SpecError(f"schedule '{schedule}' is not known: {', '.join(SCHEDULES)}")
        per_rank = int(request.options.get("stages_per_rank", 2 if schedule == "interleaved" else 1))
        if (per_rank > 1) != (schedule == "interleaved"):
            raise SpecError(f"schedule {schedule} with {per_rank} stages per rank: only interleaved takes more than one")
        if batch is None:
            raise SpecError("a pipeline splits the batch, and the inputs have no common first dimension")
        fine = (n for n in range(2 * ranks, batch + 1) if batch % n == 0 and (per_rank == 1 or n % ranks == 0))
        count = int(request.options.get("microbatches", 0)) or next(fine, batch)
        if count < 1 or batch % count:
            near = [n for n in range(1, batch + 1) if batch % n == 0]
            raise SpecError(f"a batch of {batch} does not go into {count} micro-batches; microbatches may be {near}")
        if schedule == "interleaved" and count % ranks:
            raise SpecError(f"interleaved stages need micro-batches in groups of {ranks}, and {count} are no multiple")
        return cls(ranks, per_rank, count, schedule)

    @property
    def n_stages(self) -> int:
        return self.ranks * self.per_rank

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose results a stage keeps, as the schedules of torch warm up."""
        m = self.micro_batches
        if self.schedule == "gpipe":
            return m
        rank = stage % self.ranks
        if self.per_rank == 1:
            return min(m, self.ranks - rank)
        warm = (self.per_rank - 1) * self.ranks + 2 * (self.ranks - 1 - rank) + 1
        return min(m, -(-warm // self.per_rank))

    def step_s(self, stages: Sequence[float], transfers: Sequence[float]) -> float:
        """Of stage times and of the transfers between them, each way once per micro-batch."""
        spread, repeat = self.weights()
        slowest = max(sum(stages[r :: self.ranks]) for r in range(self.ranks)) / self.per_rank
        return spread * (sum(stages) + 2.0 * sum(transfers)) + repeat * slowest

    def weights(self) -> tuple[float, float]:
        """Of the sum of all stages' times, and of the slowest one."""
        m, v, p = self.micro_batches, self.per_rank, self.ranks
        return (1.0, m - 1.0) if v == 1 else ((p - 1.0) / (p * v), float(m * v))
