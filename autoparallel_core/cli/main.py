"""The command: picks what to run, and turns every failure of the user's into one sentence and an exit code.

Exit codes: 0 an answer; 2 bad input; 3 a valid question to which nothing fits; 130 interrupted; 141 the reader
of a pipe went away.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from autoparallel_core.cli.parser import Parser, suggestion
from autoparallel_core.cli.registry import ADVISE, COMMANDS
from autoparallel_core.errors import AutoparallelError, SpecError
from autoparallel_core.version import version

BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141

_PROGRAM = "autoparallel"
_DESCRIPTION = (
    "Find, explain and rank parallel strategies for training or serving a language model on a GPU cluster. Needs no GPU."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except AutoparallelError as e:
        from autoparallel_core.cli.hosting import print_untold_warnings

        print_untold_warnings()
        return _fail(str(e), e.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as e:
        return _fail(f"cannot open {e.filename}: {e.strerror}" if e.filename else str(e), BAD_INPUT)
    return code


def _fail(sentence: str, code: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    print(f"{_PROGRAM}: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _run(argv: list[str]) -> int:
    word = _command_word(argv)
    command = ADVISE if word is None else COMMANDS.get(argv[word])
    if command is None:
        hint = suggestion(argv[word or 0], tuple(COMMANDS)) or f"; known: {', '.join(COMMANDS)}"
        raise SpecError(f"unknown command '{argv[word or 0]}'{hint}")
    module = command.load()
    parser = Parser(prog=_PROGRAM, description=_DESCRIPTION)
    if command is ADVISE:
        module.add_flags(parser)
        parser.usage = (
            f"{_PROGRAM} --model-path PATH | --model NAME | --hidden-size N … [flags]\n       {_PROGRAM} COMMAND [flags]"
        )
        parser.formatter_class = _HelpWithCommands
        parser.epilog = "commands (each has its own --help):\n" + "".join(
            f"  {c.name:<10}{c.summary}\n" for c in COMMANDS.values()
        )
        parser.add_argument("--version", action="version", version=f"{_PROGRAM} {version()}")
    else:
        subparsers = parser.add_subparsers()
        module.add_parser(subparsers)
        parser = subparsers.choices[command.name]
        argv = argv[: word or 0] + argv[(word or 0) + 1 :]
    if "--no-plugin" not in parser.flags():
        parser.add_argument("--no-plugin", metavar="NAME", action="append", default=[], help="leave a plugin out (repeatable)")
    code: int = module.run(parser.parse_args(argv))
    return code


def _command_word(argv: Sequence[str]) -> int | None:
    """Where the subcommand stands: the first word, after any ``--no-plugin NAME``; None for the bare form."""
    i = 0
    while i < len(argv) and argv[i].startswith("--no-plugin"):
        i += 1 if "=" in argv[i] else 2
    return i if i < len(argv) and not argv[i].startswith("-") else None


class _HelpWithCommands(argparse.HelpFormatter):
    """Keeps the lines of the list of commands."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


if __name__ == "__main__":
    sys.exit(main())
