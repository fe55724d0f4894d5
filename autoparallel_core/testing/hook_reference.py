"""The hooks' page of the documentation, made from their specifications.

``python -m autoparallel_core.testing.hook_reference docs/reference/hooks.md`` renews the part below the marker.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from textwrap import dedent

from autoparallel_core.hookspecs import HOOKS_BY_GROUP
from autoparallel_core.hosting.loading import hooks_of

MARKER = "<!-- below this line: made by python -m autoparallel_core.testing.hook_reference -->"
EXAMPLE = "Example::"


def signature(hook: str) -> str:
    """``memory(problem: Problem, batch: StrategyBatch) -> …`` as the specification states it, without ``self``."""
    spec = next(getattr(c, hook) for c in HOOKS_BY_GROUP.values() if hook in hooks_of(c))
    full = inspect.signature(spec)
    arguments = ", ".join(str(p).replace("'", "") for p in list(full.parameters.values())[1:])
    return f"{hook}({arguments}) -> {str(full.return_annotation).strip(chr(39))}"


def parts(hook: str) -> tuple[str, str]:
    """A hook's text and its worked example. Raises ValueError when its docstring has none."""
    spec = next(getattr(c, hook) for c in HOOKS_BY_GROUP.values() if hook in hooks_of(c))
    text, found, example = inspect.cleandoc(spec.__doc__ or "").partition(EXAMPLE)
    if not found:
        raise ValueError(f"hook {hook} has no example in its docstring")
    return text.strip(), dedent(example).strip()


def reference() -> str:
    """Every hook by group: signature, text, worked example."""
    out = []
    for group, specs in HOOKS_BY_GROUP.items():
        title, _, rest = inspect.cleandoc(specs.__doc__ or "").partition(": ")
        out += [f"## {title.replace('``', '`')}", "", f"{rest[:1].upper()}{rest[1:]}".replace("``", "`"), ""]
        for hook in hooks_of(specs):
            text, example = parts(hook)
            out += [f"### `{hook}`", "", f"```text\n{signature(hook)}\n```", "", text.replace("``", "`"), ""]
            out += [f"```python\n{example}\n```", ""]
        assert group in title
    return "\n".join(out).rstrip() + "\n"


def renewed(page: str) -> str:
    """The page with everything below the marker made anew."""
    head, found, _ = page.partition(MARKER)
    if not found:
        raise ValueError(f"the page lacks the line {MARKER}")
    return f"{head}{MARKER}\n\n{reference()}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
