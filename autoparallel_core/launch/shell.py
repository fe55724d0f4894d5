"""Shell scripts as the commands they run: variables, arrays, loops and here-documents worked out, nothing executed.

The grammar is tree-sitter's; this module walks its tree. What only a running shell can know (the output of a program,
a variable that the script never sets) stays in the words as ``$NAME`` or ``$(…)``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from autoparallel_core.launch.arithmetic import calculate
from autoparallel_core.launch.words import LITERAL, MOST_TURNS, Value, Words, join, one, parser, source

if TYPE_CHECKING:
    from tree_sitter import Node

DEEPEST = 24
"""Nested scripts, functions and ``bash -c``."""
SHELLS = ("bash", "sh", "zsh", "dash")


@frozen
class Command:
    """A simple command: its words after expansion, and the environment that it sees from the script."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(factory=dict)
    around: tuple[str, ...] = ()
    """Words of the commands that run it (``srun … bash -c``)."""


@frozen
class Script:
    """What a script does, in order."""

    commands: tuple[Command, ...]
    variables: Mapping[str, Value]
    documents: Mapping[str, str]
    """Texts that the script writes into files, by file name."""
    comments: tuple[str, ...]
    called: frozenset[str]
    """Base names of other files that it runs or sources."""
    undecided: tuple[str, ...] = ()
    """Conditions that the script's own variables do not settle; the first branch was followed."""


def read_script(text: str, *, environment: Mapping[str, str] | None = None, others: Mapping[str, str] | None = None) -> Script:
    """Work out a script.

    Args:
        text: the script.
        environment: variables that are set before it starts (a batch system's).
        others: texts of other scripts by base name, followed when this one sources or runs them.
    """
    walk = _Walk(variables=dict(environment or {}), exported=set(environment or {}), others=dict(others or {}))
    walk.text(text)
    comments = tuple(line.strip() for line in text.splitlines() if line.lstrip().startswith("#"))
    return Script(tuple(walk.commands), walk.variables, walk.documents, comments, frozenset(walk.called), tuple(walk.undecided))


@define
class _Walk(Words):
    exported: set[str] = field(factory=set)
    others: dict[str, str] = field(factory=dict)
    commands: list[Command] = field(factory=list)
    documents: dict[str, str] = field(factory=dict)
    called: set[str] = field(factory=set)
    undecided: list[str] = field(factory=list)
    functions: dict[str, Node] = field(factory=dict)
    depth: int = 0
    around: tuple[str, ...] = ()

    def text(self, text: str) -> None:
        if self.depth >= DEEPEST:
            return
        self.depth += 1
        self.statements(parser().parse(text.encode()).root_node.named_children)
        self.depth -= 1

    # -- statements ----------------------------------------------------------------------------------------------

    def statements(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.statement(node)

    def statement(self, node: Node) -> None:
        if node.type in LITERAL or node.type == "comment":
            return  # a word where a command should stand, as in unfinished text
        handle = getattr(self, f"_{node.type}", None)
        if handle is not None:
            handle(node)
        else:
            self.statements(node.named_children)

    def _variable_assignment(self, node: Node) -> None:
        name, value = self.assigned(node)
        self.variables[name] = value

    def _declaration_command(self, node: Node) -> None:
        exports = node.children[0].type in {"export", "declare", "typeset"}
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._variable_assignment(child)
                name_node = child.child_by_field_name("name")
                assert name_node is not None
                if exports:
                    self.exported.add(source(name_node))
            elif child.type == "variable_name" and exports:
                self.exported.add(source(child))

    def _unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.variables.pop(source(child), None)

    def _command(self, node: Node) -> None:
        own: dict[str, str] = {}
        words: list[str] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = self.assigned(child)
                own[name] = one(value)
            elif child.type == "command_name":
                words += self.expand(child.named_children[0]) if child.named_children else [source(child)]
            elif child.type in LITERAL:
                words += self.expand(child)
        if not words:
            self.variables.update(own)
            return
        self._run(words, own)

    def _run(self, words: list[str], own: Mapping[str, str]) -> None:
        name = words[0].rsplit("/", 1)[-1]
        if name in self.functions and self.depth < DEEPEST:
            self.depth += 1
            saved = {k: self.variables.get(k) for k in ("1", "2", "3", "4", "5", "6", "7", "8", "9", "@")}
            self.variables |= {str(i): w for i, w in enumerate(words[1:10], 1)} | {"@": words[1:]}
            self.statement(self.functions[name])
            for k, v in saved.items():
                if v is None:
                    self.variables.pop(k, None)
                else:
                    self.variables[k] = v
            self.depth -= 1
            return
        if name == "eval" and len(words) > 1:
            self._nested(" ".join(words[1:]), own)
            return
        if name in {"source", "."} and len(words) > 1:
            self._follow(words[1], own)
            return
        environment = {k: one(self.variables[k]) for k in sorted(self.exported) if k in self.variables} | dict(own)
        self.commands.append(Command(tuple(words), environment, self.around))
        outer, self.around = self.around, (*self.around, *words)
        self._inner(words, own)
        self.around = outer

    def _inner(self, words: Sequence[str], own: Mapping[str, str]) -> None:
        """``bash -c "…"`` anywhere in a command, and other files of ours that it runs."""
        for i, word in enumerate(words):
            base = word.rsplit("/", 1)[-1]
            if base in SHELLS:
                rest = list(words[i + 1 :])
                at = next((j for j, w in enumerate(rest) if re.fullmatch(r"-[a-z]*c", w)), None)
                if at is not None and at + 1 < len(rest):
                    self._nested(rest[at + 1], own)
                    return
            if base in self.others and base not in self.called:
                self._follow(word, own)
                return

    def _follow(self, path: str, own: Mapping[str, str]) -> None:
        base = path.rsplit("/", 1)[-1]
        if base in self.others:
            self.called.add(base)
            self._nested(self.others[base], own)

    def _nested(self, text: str, own: Mapping[str, str]) -> None:
        before = dict(self.variables)
        self.variables.update(own)
        self.exported.update(own)
        self.text(text)
        for name in own:
            if name in before:
                self.variables[name] = before[name]

    def _redirected_statement(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        target = None
        document = None
        for child in node.named_children:
            if child.type == "file_redirect" and (destination := child.child_by_field_name("destination")) is not None:
                target = join(self.expand(destination))
            elif child.type == "heredoc_redirect":
                document = self._heredoc(child)
                for inner in child.named_children:
                    if inner.type == "file_redirect" and (d := inner.child_by_field_name("destination")) is not None:
                        target = join(self.expand(d))
        if body is not None and document is not None and body.type == "command":
            words = [w for c in body.named_children for w in (self.expand(c.named_children[0]) if c.type == "command_name" else
                     self.expand(c) if c.type in LITERAL else [])]  # fmt: skip
            if words[:1] == ["tee"] and len(words) > 1:
                target = words[-1]
            if target is not None and words[:1] in (["cat"], ["tee"]):
                self.documents[target.rsplit("/", 1)[-1]] = document
                return
            if any(w.rsplit("/", 1)[-1] in SHELLS for w in words):
                outer, self.around = self.around, (*self.around, *words)
                self._nested(document, {})
                self.around = outer
                return
        if body is not None:
            self.statement(body)

    def _heredoc(self, node: Node) -> str:
        start = next((c for c in node.named_children if c.type == "heredoc_start"), None)
        body = next((c for c in node.named_children if c.type == "heredoc_body"), None)
        if body is None:
            return ""
        quoted = start is not None and any(q in source(start) for q in "'\"\\")
        return source(body) if quoted else self.filled(body)

    def _function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[source(name)] = body

    def _if_statement(self, node: Node) -> None:
        condition = node.child_by_field_name("condition")
        branches = [c for c in node.named_children if c.type in {"elif_clause", "else_clause"}]
        first = [c for c in node.named_children if c not in branches and c != condition]
        if self._holds(condition):
            self.statements(first)
            return
        for branch in branches:
            if branch.type == "else_clause":
                self.statements(branch.named_children)
                return
            test, *rest = branch.named_children
            if self._holds(test):
                self.statements(rest)
                return

    def _holds(self, condition: Node | None) -> bool:
        if condition is None:
            return True
        answer = self._truth(condition)
        if answer is None:
            self.undecided.append(" ".join(source(condition).split()))
            return True
        return answer

    def _truth(self, node: Node) -> bool | None:
        """Whether a test holds; None when only a running shell can tell."""
        if node.type == "list" and len(node.named_children) == 2:
            left, right = (self._truth(c) for c in node.named_children)
            if any(c.type == "&&" for c in node.children):
                return False if left is False or right is False else None if left is None or right is None else True
            return True if left or right else None if left is None or right is None else False
        if node.type == "negated_command" and node.named_children:
            inner = self._truth(node.named_children[0])
            return None if inner is None else not inner
        text = source(node)
        m = re.fullmatch(r"\s*(?:\[\[?|test)\s+(.*?)\s*\]?\]?\s*", text, re.DOTALL)
        if m is None or "$(" in text or "`" in text:
            return None
        words = self._words(m[1])
        negated = False
        while words[:1] == ["!"]:
            words, negated = words[1:], not negated
        answer = _test(words)
        return None if answer is None else answer != negated

    def _words(self, text: str) -> list[str]:
        """The words of a text, expanded as the arguments of a command; a variable without value is an empty word."""
        root = parser().parse(f"x {text}\n".encode()).root_node
        command = root.named_children[0] if root.named_children else None
        if command is None or command.type != "command":
            return text.split()
        out: list[str] = []
        for child in command.named_children[1:]:
            out += ["" if re.fullmatch(r"\$\{?\w+\}?", w) else w for w in self.expand(child)] or [""]
        return out

    def _case_statement(self, node: Node) -> None:
        value_node = node.child_by_field_name("value")
        value = join(self.expand(value_node)) if value_node is not None else ""
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = item.children_by_field_name("value")
            if any(fnmatchcase(value, join(self.expand(p))) for p in patterns):
                self.statements([c for c in item.named_children if c not in patterns])
                return

    def _for_statement(self, node: Node) -> None:
        name_node, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name_node is None or body is None:
            return
        turns = [w for v in node.children_by_field_name("value") for w in self.expand(v)]
        for word in turns[:MOST_TURNS]:
            self.variables[source(name_node)] = word
            self.statement(body)

    def _c_style_for_statement(self, node: Node) -> None:
        """``for ((i = 0; i < N; i++))``; other forms run once."""
        m = re.match(r"for\s*\(\(\s*(\w+)\s*=\s*(.+?);\s*\w+\s*(<=?)\s*(.+?);", source(node))
        body = node.child_by_field_name("body")
        if body is None:
            return
        if m is None:
            self.statement(body)
            return
        first, last = calculate(m[2], self.number), calculate(m[4], self.number)
        if first is None or last is None:
            self.statement(body)
            return
        for i in range(first, min(last + (m[3] == "<="), first + MOST_TURNS)):
            self.variables[m[1]] = str(i)
            self.statement(body)


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip


def _test(words: Sequence[str]) -> bool | None:
    match list(words):
        case ["-z", x]:
            return not x
        case ["-n", x]:
            return bool(x)
        case [x] if not x.startswith("-"):
            return bool(x)
        case [a, "=" | "==", b]:
            return fnmatchcase(a, b)
        case [a, "!=", b]:
            return not fnmatchcase(a, b)
        case [a, op, b] if op in _COMPARE and _whole(a) and _whole(b):
            return _COMPARE[op](int(a), int(b))
    return None


def _whole(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


def iterate(script: Script) -> Iterator[Command]:
    """The commands, with those joined that were meant as one: a list of flags without a program in front."""
    loose: list[str] = []
    for command in script.commands:
        if command.words[0].startswith("-"):
            loose += command.words
            continue
        yield command
    if loose:
        yield Command(tuple(loose), {})
