"""``autoparallel plan``: placements of a module's parameters and operators on a mesh; and reading such plans."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from autoparallel_core.cli.parser import Parser
from autoparallel_core.cli.plan_flags import FUNCTIONS, GROUPS

_ROOM = "autoparallel_core.cli"
_FILE = ("plan", "PLAN", "a plan.json")


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "plan",
        description="Find the placements of a module's parameters and operators on a device mesh: --module with --inputs, or a "
        "model from its config. Needs no GPU.",
    )
    p.usage = (
        "%(prog)s --module PKG.MOD:FUNCTION --inputs PKG.MOD:FUNCTION --mesh dp=32,tp=8 [flags]\n"
        "       %(prog)s --model-path PATH --mesh auto --n-gpus N [flags]\n"
        "       %(prog)s show PLAN | diff A B | explain PLAN NODE | verify PLAN | html PLAN --out FILE"
    )
    for title, flags in GROUPS:
        group = p.add_argument_group(title)
        for flag in flags:
            if flag.name == "--pin":
                group.add_argument(flag.name, action="append", type=flag.read, metavar=flag.metavar, default=[], help=flag.help)
            else:
                flag.add_to(group)
    p.set_defaults(handler="plan_make", word=None)
    words = p.add_subparsers(title="a plan that was written", metavar="", parser_class=_Word, dest="word", required=False)
    _words(words)


class _Word(Parser):
    """Parser of one word behind ``plan``; takes ``--no-plugin`` as every command does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_argument(
            "--no-plugin", metavar="NAME", action="append", default=argparse.SUPPRESS, help="leave a plugin out (repeatable)"
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, with this parser's own flags in the message about an unknown one."""
        parsed, extra = super().parse_known_args(args, namespace)
        if extra:
            self._refuse(extra[0])
        return parsed, extra


def _words(words: Any) -> None:
    show = words.add_parser("show", help="what the plan achieves, and where everything lies", description="The tables of a plan.")
    _add(show, _FILE)
    show.add_argument("--operators", action="store_true", help="also every operator with its placement")
    show.add_argument("--all", action="store_true", help="list every collective")
    diff = words.add_parser("diff", help="what differs between two plans", description="What differs between two plans.")
    _add(diff, ("a", "A", "a plan.json"), ("b", "B", "another one"))
    diff.add_argument("--all", action="store_true", help="list every operator and collective that differs")
    explain = words.add_parser("explain", help="why a node is placed as it is", description="Why a node is placed as it is.")
    _add(explain, _FILE, ("node", "NODE", "an operator, parameter or input, as 'plan show --operators' names them"))
    verify = words.add_parser(
        "verify",
        help="replay the plan on this CPU and compare with the module",
        description="Replay a plan on this CPU, on a reduced copy of the module, and compare results, gradients and collectives.",
    )
    _add(verify, _FILE)
    for flag in FUNCTIONS[:2]:
        verify.add_argument(flag.name, metavar=flag.metavar, help=f"{flag.help} (default: as the plan records)")
    verify.add_argument("--processes", type=int, metavar="N", help="so many processes over gloo (default: one plays all ranks)")
    verify.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and inputs (default 0)")
    html = words.add_parser(
        "html", help="write the page of a plan", description="Write the page of a plan: one file, no network."
    )
    _add(html, _FILE)
    html.add_argument("--out", metavar="FILE", required=True, help="where to write it")
    html.add_argument("--force", action="store_true", help="overwrite the file")
    for name, handler in (("show", "plan_read"), ("diff", "plan_read"), ("explain", "plan_read"), ("verify", "plan_verify"),
                          ("html", "plan_read")):  # fmt: skip
        words.choices[name].set_defaults(handler=handler)


def _add(parser: Any, *positionals: tuple[str, str, str]) -> None:
    for name, metavar, text in positionals:
        parser.add_argument(name, metavar=metavar, help=text)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the word behind ``plan``, or plan."""
    code: int = import_module(f"{_ROOM}.{args.handler}").run(args)
    return code
