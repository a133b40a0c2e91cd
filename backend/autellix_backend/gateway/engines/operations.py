"""Operators' changes to the engine pool, made at every worker of the gateway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from autellix_backend.engines.base import EngineError
from autellix_backend.engines.factory import make_remote
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.errors import ConflictError, GatewayError
from autellix_backend.gateway.workers.others import OtherWorkers
from autellix_backend.settings import EngineSettings, SettingsError

JOIN, DRAIN, UNDRAIN, REMOVE, POOL = "join", "drain", "undrain", "remove", "pool"

logger = logging.getLogger(__name__)


class EngineAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running server, under its name in the pool."""

    url: str
    """Including its password, if any."""
    name: str
    kind: str
    report_port: int | None = None


class _PoolState(msgspec.Struct, frozen=True):
    """What a worker that starts later needs to know."""

    names: list[str]
    drained: list[str]
    joined: list[EngineAddress]


class PoolOperations:
    """Changes the pool here and at the other workers.

    Each method returns the engine, and the workers that did not answer in time but may still follow.
    """

    def __init__(self, pool: EnginePool, settings: EngineSettings, others: OtherWorkers) -> None:
        """Change a pool, and answer the other workers about it."""
        self._pool = pool
        self._settings = settings
        self._others = others
        self._joined: dict[str, EngineAddress] = {}
        others.answer(JOIN, lambda content: self._join_too(msgspec.convert(content, EngineAddress)))
        others.answer(POOL, self._state)
        others.answer(DRAIN, partial(_problem_of, pool.drain))
        others.answer(UNDRAIN, partial(_problem_of, pool.undrain))
        others.answer(REMOVE, partial(_problem_of, pool.remove))

    async def join(self, address: EngineAddress) -> tuple[EngineHandle, list[int]]:
        """Add a running server.

        Raises:
            SettingsError: if its address is invalid.
            EngineError: if it does not answer.
            ConflictError: if its name is taken.
        """
        handle = await self._join(address)
        return handle, await self._elsewhere(JOIN, msgspec.to_builtins(address))

    async def drain(self, name: str) -> tuple[EngineHandle, list[int]]:
        """Drain an engine; raises as the pool does."""
        return self._pool.drain(name), await self._elsewhere(DRAIN, name)

    async def undrain(self, name: str) -> tuple[EngineHandle, list[int]]:
        """Undo drain(); raises as the pool does."""
        return self._pool.undrain(name), await self._elsewhere(UNDRAIN, name)

    async def remove(self, name: str) -> tuple[EngineHandle, list[int]]:
        """Let an engine leave with its last call; raises as the pool does."""
        return self._pool.remove(name), await self._elsewhere(REMOVE, name)

    async def catch_up(self) -> None:
        """Make the changes that another worker has already made: this one may replace one that died."""
        answers = await self._others.ask(POOL, None)
        answer = next((each for each in answers.values() if each is not None), None)
        if answer is None:
            return
        state = msgspec.convert(answer, _PoolState)
        known = {handle.engine.name for handle in self._pool}
        problems = [await self._join_too(each) for each in state.joined if each.name not in known]
        problems += [_problem_of(self._pool.remove, name) for name in sorted(known.difference(state.names))]
        problems += [_problem_of(self._pool.drain, name) for name in state.drained]
        for problem in filter(None, problems):
            logger.warning("the pool is not as at the other workers: %s", problem)

    async def _join(self, address: EngineAddress) -> EngineHandle:
        self._pool.check_free(address.name)
        engine = make_remote(
            self._settings, address.url, name=address.name, kind=address.kind, report_port=address.report_port
        )
        await engine.start()
        handle = self._pool.join(engine)
        self._joined[address.name] = address
        return handle

    async def _join_too(self, address: EngineAddress) -> str:
        try:
            await self._join(address)
        except (GatewayError, EngineError, SettingsError) as error:
            return f"{address.name}: {error}"
        return ""

    async def _elsewhere(self, kind: str, content: object) -> list[int]:
        answers = await self._others.ask(kind, content)
        problems = [f"worker {worker}: {problem}" for worker, problem in answers.items() if problem]
        if problems:
            raise ConflictError(f"done at this worker, but not at all others: {'; '.join(problems)}")
        return [worker for worker, problem in answers.items() if problem is None]

    def _state(self, _nothing: object) -> object:
        names = [handle.engine.name for handle in self._pool if not handle.is_leaving]
        return msgspec.to_builtins(
            _PoolState(
                names=names,
                drained=[name for name in names if self._pool.get(name).is_draining],
                joined=[address for name, address in self._joined.items() if name in names],
            )
        )


def _problem_of(change: Callable[[str], object], name: str) -> str:
    try:
        change(name)
    except GatewayError as error:
        return str(error)
    return ""
