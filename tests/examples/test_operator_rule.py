"""A third party's operator: reported with its cost without a rule, sharded with the rule of its plugin."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import autoparallel_core as ap  # noqa: E402
from autoparallel_core.errors import PluginConflict  # noqa: E402
from autoparallel_core.host import Host, LocalPlugin  # noqa: E402
from autoparallel_core.module_planning import verify  # noqa: E402

pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "autoparallel-example"


@pytest.fixture(scope="module", name="hosts")
def _hosts() -> Iterator[tuple[Host, Host]]:
    """Without the plugin, and with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        ours = [ep for kind in ("hardware", "planners") for ep in entry_points(group=f"autoparallel.{kind}")]
        scan = LocalPlugin("scan", "planners", import_module("example_scan"), "autoparallel-example", "1.0.0")
        yield Host(entry_points=ours), Host(entry_points=[*ours, scan])


def mixer(hidden: int, width: int) -> Any:
    return import_module("example_scan.operators").Mixer(hidden, width)


def test_a_rule_shards_a_custom_operator(hosts: tuple[Host, Host]) -> None:
    without, host = hosts
    with torch.device("meta"):
        module, x = mixer(1024, 4096), torch.empty(64, 512, 1024)
    whole = ap.plan(module, [x], {"dp": 2, "tp": 4}, gpu="H100", host=without)
    assert {u["op"] for u in whole.document["unruled"]} == {"example_scan.scan.default", "example_scan.scan_backward.default"}
    assert all(u["seconds"] > 0 for u in whole.document["unruled"])
    plan = ap.plan(module, [x], {"dp": 2, "tp": 4}, gpu="H100", host=host)
    assert plan.document["unruled"] == []
    (scan,) = [o for o in plan.document["operators"] if o["op"] == "example_scan.scan.default"]
    assert (scan["rules"], scan["out"][0].count("R")) == ("user", 0)
    assert plan.step_s < 0.9 * whole.step_s
    small = torch.randn(8, 4, 16)
    for made, plugins in ((whole, without), (plan, host)):
        figures = verify(made, mixer(16, 32), [small], host=plugins)
        assert figures["passed"], figures


@pytest.mark.usefixtures("hosts")
def test_two_rules_for_one_operator_are_a_conflict() -> None:
    other = ModuleType("other")
    other.operator_rules = import_module("example_scan").operator_rules
    ours = [ep for kind in ("hardware", "planners") for ep in entry_points(group=f"autoparallel.{kind}")]
    theirs = [LocalPlugin(m.__name__, "planners", m, "d", "1.0.0") for m in (import_module("example_scan"), other)]
    host = Host(entry_points=[*ours, *theirs])
    with pytest.raises(PluginConflict, match=r"example_scan\.scan\.default has a rule of both"):
        ap.plan(torch.nn.Linear(4, 4), [torch.ones(4, 4)], {"dp": 2}, gpu="H100", host=host)
