"""Shell words: what variables, arrays, quotes, braces and arithmetic expand to, worked out on tree-sitter's tree."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from attrs import define

from autoparallel_core.launch.arithmetic import calculate

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

Value = str | list[str]
MOST_TURNS = 1024
"""Elements of a sequence (and turns of a loop) that are followed."""
LITERAL = {"word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "simple_expansion", "expansion",
           "command_substitution", "arithmetic_expansion", "process_substitution", "brace_expression", "test_operator",
           "regex", "translated_string", "array", "extglob_pattern"}  # fmt: skip
"""Nodes that are words of a command."""


_EXPANSION = re.compile(r"\$\{?(#|!)?([A-Za-z_]\w*|[@*\d#?])(?:\[([^\]]*)\])?(?:(:?[-=+?]|%%?|##?|//?|:)(.*?))?\}?", re.DOTALL)


@cache
def parser() -> Parser:
    """The grammar's parser (loaded when first needed)."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


@define
class Words:
    """Expansion of words under a set of variables, which ``${A:=x}`` may add to."""

    variables: dict[str, Value]

    def assigned(self, node: Node) -> tuple[str, Value]:
        target, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        assert target is not None
        name = re.split(r"\[", source(target))[0]
        appends = any(c.type == "+=" for c in node.children)
        value: Value = ""
        if value_node is not None:
            value = self.expand(value_node) if value_node.type == "array" else join(self._whole(value_node))
        before = self.variables.get(name)
        if "[" in source(target):
            value = [*([] if before is None else [before] if isinstance(before, str) else before), one(value)]
        elif appends and before is not None:
            if isinstance(before, list):
                value = before + (value if isinstance(value, list) else [value])
            else:
                value = [before, *value] if isinstance(value, list) else before + value
        return name, value

    def _whole(self, node: Node) -> list[str]:
        """As one field: assignments do not split words."""
        return [" ".join(self.expand(node, quoted=True))]

    def expand(self, node: Node, *, quoted: bool = False) -> list[str]:
        """The fields that one word becomes."""
        kind = node.type
        if kind in {"word", "number", "test_operator", "regex", "extglob_pattern"}:
            if any(c.type in {"simple_expansion", "expansion", "arithmetic_expansion"} for c in node.named_children):
                return [self.filled(node)]
            return [re.sub(r"\\(.)", r"\1", source(node).replace("\\\n", ""), flags=re.DOTALL)]
        if kind == "raw_string":
            return [source(node)[1:-1]]
        if kind == "ansi_c_string":
            return [source(node)[2:-1].encode().decode("unicode_escape", errors="replace")]
        if kind in {"string", "translated_string"}:
            return self._string(node)
        if kind == "array":
            return [w for c in node.named_children if c.type in LITERAL for w in self.expand(c)]
        if kind == "concatenation":
            return self._concatenation(node, quoted=quoted)
        if kind == "brace_expression":
            return _braces(source(node))
        if kind in {"simple_expansion", "expansion"}:
            return self._split(self._variable(source(node)), quoted=quoted)
        if kind == "arithmetic_expansion":
            text = source(node)[len(_before(source(node))) :]
            value = calculate(text[3:-2], self.number)
            return [text if value is None else str(value)]
        if kind == "command_substitution":
            return self._split(self._output(node), quoted=quoted)
        return [source(node)]

    @staticmethod
    def _split(value: Value, *, quoted: bool) -> list[str]:
        if isinstance(value, list):
            return value
        return [value] if quoted else value.replace("\\\n", " ").split()

    def _string(self, node: Node) -> list[str]:
        """A double-quoted string; ``"${A[@]}"`` alone is the array's elements."""
        inner = node.named_children
        if len(inner) == 1 and inner[0].type in {"simple_expansion", "expansion"} and source(node)[1:-1] == source(inner[0]):
            value = self._variable(source(inner[0]))
            many = "[@]" in source(inner[0]) or source(inner[0]) in {"$@", "${@}"}
            return value if isinstance(value, list) and many else [join(value)]
        return [self.filled(node)[1:-1]]

    def filled(self, node: Node) -> str:
        """Source of a node with its expansions replaced, whatever lies between them kept."""
        raw, at, out = node.text or b"", node.start_byte, []
        for child in node.named_children:
            if child.type in {"simple_expansion", "expansion", "arithmetic_expansion", "command_substitution"}:
                blank = len(_before(source(child)).encode())  # the grammar counts blanks in front to it
                out.append(_unescaped(raw[at - node.start_byte : child.start_byte + blank - node.start_byte].decode()))
                out.append(" ".join(self.expand(child, quoted=True)))
                at = child.end_byte
        out.append(_unescaped(raw[at - node.start_byte :].decode()))
        return "".join(out)

    def _concatenation(self, node: Node, *, quoted: bool) -> list[str]:
        fields: list[list[str]] = [self.expand(c, quoted=quoted or c.type != "simple_expansion") for c in node.named_children]
        out = [""]
        for parts in fields:
            if not parts:
                continue
            if len(parts) > 1 and all(c.type == "brace_expression" for c in node.named_children if self.expand(c) == parts):
                out = [a + p for a in out for p in parts]
            else:
                out = [*out[:-1], out[-1] + parts[0], *parts[1:]]
        return out

    def _variable(self, written: str) -> Value:
        """``$A``, ``${A}``, ``${A:-default}``, ``${A[@]}``, ``${A[1]}``, ``${#A[@]}``, ``${!A}``."""
        text = written[len(_before(written)) :]
        m = _EXPANSION.fullmatch(text)
        if m is None:
            return text
        flag, name, index, operator, argument = m.groups()
        value = self.variables.get(name)
        if flag == "!" and isinstance(value, str):
            value = self.variables.get(value)
        if isinstance(value, list) and index not in {None, "@", "*"}:
            position = calculate(index, self.number)
            value = value[position] if position is not None and -len(value) <= position < len(value) else None
        elif isinstance(value, list) and index is None and name not in {"@", "*"}:
            value = value[0] if value else ""
        if flag == "#":
            return str(len(value) if value is not None else 0)
        if operator:
            return self._defaulted(text, name, value, operator, argument or "")
        if value is None:
            return [] if name in {"@", "*"} or index in {"@", "*"} else f"${name}" if name != "?" else "0"
        return value

    def _defaulted(self, text: str, name: str, value: Value | None, operator: str, argument: str) -> Value:
        empty = value is None or (operator.startswith(":") and not value)
        if operator in {"-", ":-", "=", ":="}:
            if not empty:
                return value if value is not None else ""
            default = join(self._argument(argument))
            if "=" in operator:
                self.variables[name] = default
            return default
        if operator in {"+", ":+"}:
            return "" if empty else join(self._argument(argument))
        if operator in {"?", ":?"}:
            return f"${name}" if value is None else value
        if value is None:
            return f"${name}"
        word, pattern = one(value), join(self._argument(argument))
        if operator == ":" and (m := re.fullmatch(r"\s*(-?\d+)(?::(-?\d+))?", argument)):
            return word[int(m[1]) :][: int(m[2])] if m[2] else word[int(m[1]) :]
        if operator in {"%", "%%"}:
            cuts = range(len(word), -1, -1) if operator == "%" else range(len(word) + 1)
            return next((word[:i] for i in cuts if fnmatchcase(word[i:], pattern)), word)
        if operator in {"#", "##"}:
            cuts = range(len(word) + 1) if operator == "#" else range(len(word), -1, -1)
            return next((word[i:] for i in cuts if fnmatchcase(word[:i], pattern)), word)
        if operator in {"/", "//"} and "/" in argument:
            old, new = argument.split("/", 1)
            return word.replace(old, new) if operator == "//" else word.replace(old, new, 1)
        return text

    def _argument(self, text: str) -> list[str]:
        if not text:
            return [""]
        quoted = text if text[0] in "\"'" else '"' + text.replace('"', '\\"') + '"'
        root = parser().parse(f"x {quoted}\n".encode()).root_node
        command = next(iter(root.named_children), None)
        if command is None or command.type != "command":
            return [text]
        return [w for child in command.named_children[1:] for w in self.expand(child)]

    def _output(self, node: Node) -> Value:
        """``$(seq a b)``, ``$(nproc)`` of known things: only what needs no machine; anything else stays as written."""
        inner = next((c for c in node.named_children if c.type == "command"), None)
        if inner is not None:
            words = [w for c in inner.named_children
                     for w in (self.expand(c.named_children[0]) if c.type == "command_name" else self.expand(c))]  # fmt: skip
            if words[:1] == ["seq"] and all(re.fullmatch(r"-?\d+", w) for w in words[1:]):
                numbers = [int(w) for w in words[1:]]
                first, step, last = (1, 1, numbers[0]) if len(numbers) == 1 else (
                    (numbers[0], 1, numbers[1]) if len(numbers) == 2 else (numbers[0], numbers[1] or 1, numbers[2]))  # fmt: skip
                return [str(i) for i in range(first, last + (1 if step > 0 else -1), step)][:MOST_TURNS]
            if words[:1] == ["echo"] and len(words) > 1:
                return " ".join(words[1:])
        return "$(…)"

    def number(self, name: str) -> str | None:
        value = self.variables.get(name)
        return None if value is None else one(value)


def source(node: Node) -> str:
    return (node.text or b"").decode()


def _before(text: str) -> str:
    """What stands in front of the ``$`` or backtick of an expansion."""
    m = re.match(r"(?:\s|\\\n)*(?=[$`])", text)
    return m[0] if m else ""


def _unescaped(text: str) -> str:
    return re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", ""))


def one(value: Value) -> str:
    return value if isinstance(value, str) else (value[0] if value else "")


def join(value: Value) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _braces(text: str) -> list[str]:
    m = re.fullmatch(r"\{(-?\d+)\.\.(-?\d+)\}", text)
    if m is None:
        return [text]
    first, last = int(m[1]), int(m[2])
    step = 1 if last >= first else -1
    return [str(i) for i in range(first, last + step, step)][:MOST_TURNS]
