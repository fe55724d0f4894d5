"""Finding an engine's own command among all that launch files run, and making one launch of its repetitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.sources import Sources

TALK = ("echo", "printf", "cat", "tee", "grep", "sed", "logger", "export", "alias", "set")
"""Commands that only mention what follows them."""
Match = Callable[[Sequence[str]], int | None]
"""Index of the word behind which the program's arguments begin (-1: there is no program word), None: not this program."""


@frozen
class Found:
    """One launch: its arguments and what surrounds them."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    machines: Machines
    files: tuple[str, ...] = ()
    copies: int = 1
    """How often one file starts it (independent instances, or ranks of one job)."""
    before: tuple[str, ...] = ()
    """The words in front of the arguments."""
    image: str = ""
    """The container image, where a description names one."""

    def image_version(self, *names: str) -> str | None:
        """The version that the tag of one of these images states (``server:v0.9.1-cuda12`` → 0.9.1)."""
        pattern = rf"(?:.*/)?(?:{'|'.join(map(re.escape, names))}):v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?).*"
        return next((m[1] for word in (self.image, *self.before) if (m := re.fullmatch(pattern, word))), None)


def find(sources: Sources, match: Match) -> list[Found]:
    """Every command that matches, in order."""
    out = []
    for run in sources.runs:
        at = None if run.words[0].rsplit("/", 1)[-1] in TALK else match(run.words)
        if at is None and run.image and not run.program and (behind := match((run.image, *run.words))) is not None:
            at = behind - 1  # the image's entry point is the program
        if at is not None:
            words, machines = run.split(at)
            words = cut_redirections(words)
            out.append(Found(words, run.environment, machines, (run.file,), before=run.words[: at + 1], image=run.image))
    return out


def cut_redirections(words: Sequence[str]) -> tuple[str, ...]:
    """Arguments without what a shell takes for itself when a whole line is given as one word."""
    stop = next((i for i, w in enumerate(words) if re.fullmatch(r"\d?>{1,2}&?\d?|&|\||\|\||&&|;|2>&1.*|>.+", w)), len(words))
    return tuple(words[:stop])


def one_launch(found: Sequence[Found], *, per_node: Sequence[str], program: str) -> Found | None:
    """The launch that all commands are copies of; None when there is no command.

    Args:
        found: commands of one program.
        per_node: flags (without dashes) whose value differs from node to node or copy to copy; a trailing ``!`` marks switches.
        program: its name, for the message.

    Raises:
        SpecError: the commands differ in more than those flags.
    """
    if not found:
        return None
    groups: dict[tuple[str, ...], list[Found]] = {}
    for f in found:
        groups.setdefault(_key(f.words, per_node), []).append(f)
    if len(groups) > 1:
        longest = max(groups, key=len)
        if not all(set(k) <= set(longest) for k in groups):
            a, b = list(groups)[:2]
            differ = " ".join(sorted(set(a) ^ set(b)))[:160]
            raise SpecError(
                f"the files hold {len(groups)} different {program} launches, which differ in: {differ}; check each alone"
            )
        groups = {longest: [*groups[longest], *(f for k, fs in groups.items() if k != longest for f in fs)]}
    same = next(iter(groups.values()))
    by_file: dict[str, int] = {}
    machines = Machines()
    environment: dict[str, str] = {}
    for f in same:
        by_file[f.files[0]] = by_file.get(f.files[0], 0) + 1
        machines = machines.over(f.machines)
        environment = {**f.environment, **environment}
    return evolve(same[0], machines=machines, environment=environment, files=tuple(by_file), copies=max(by_file.values()))


def _key(words: Sequence[str], per_node: Sequence[str]) -> tuple[str, ...]:
    switches = {p[:-1] for p in per_node if p.endswith("!")}
    valued = {p for p in per_node if not p.endswith("!")}
    out: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        name, eq, _ = word.partition("=")
        plain = name.lstrip("-").replace("_", "-")
        if name.startswith("-") and plain in switches:
            continue
        if name.startswith("-") and plain in valued:
            skip = not eq
            continue
        out.append(word)
    return tuple(out)


def program_at(words: Sequence[str], *names: str, then: str | None = None) -> int | None:
    """Index of the first word that is a program (by base name) or a module of these names, followed by ``then`` if given."""
    for i, word in enumerate(words):
        if word.rsplit("/", 1)[-1] in names or word in names:
            if then is None:
                return i
            if i + 1 < len(words) and words[i + 1] == then:
                return i + 1
    return None


def image_at(words: Sequence[str], *names: str) -> int | None:
    """Index of the container image of one of these names (``docker run … registry/name:tag``)."""
    for i, word in enumerate(words):
        if word.rsplit("/", 1)[-1].split(":", 1)[0].split("@", 1)[0] in names and not word.startswith("-"):
            return i
    return None


def has_flag(words: Sequence[str], *flags: str) -> bool:
    """Whether one of the flags is among the words (``--a-b`` and ``--a_b`` are one)."""
    stated = {w.split("=", 1)[0].replace("_", "-") for w in words if w.startswith("-")}
    return any(f in stated for f in flags)
