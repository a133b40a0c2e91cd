"""System prefixes, such as instructions and tool lists, that prompts of several programs begin with."""

from __future__ import annotations

from dataclasses import dataclass

from autellix_lab.workload.trace import ProgramTrace


@dataclass(frozen=True, slots=True)
class SystemPrefix:
    """The system prefix of one program; programs with equal keys share it."""

    key: str
    tokens: tuple[int, ...]
    """By call: leading prompt tokens that lie in the prefix."""

    @property
    def length(self) -> int:
        """Tokens of the prefix, all of which the first call has."""
        return self.tokens[0]


def system_prefix(program: ProgramTrace) -> SystemPrefix | None:
    """Return a program's system prefix; None if its trace states none.

    Two prefixes are equal if their programs have the same source and their lengths are equal. Traces hold no
    text, but a length to the token identifies a tool list: of BFCL's 564 programs, 489 have a length that
    others have, and all runs of one agent (tau airline, ReAct) have the same. `group` is no part of the rule,
    as it names the task. Scaled lengths are compared after scaling, so a Fit may merge nearly equal ones.

    The first call begins with the prefix, and so do the calls that repeat the start of one that does. Other
    calls without `prefix_from` do not: the loaders found no common start.
    """
    length = min(program.system_prefix_tokens or 0, program.calls[0].prefill_tokens)
    if not length:
        return None
    tokens = [length]
    for call in program.calls[1:]:
        repeated = 0 if call.prefix_from is None else tokens[call.prefix_from]
        tokens.append(min(repeated, call.shared_prefix_tokens))
    return SystemPrefix(f"{program.source}:{length}", tuple(tokens))
