"""The reception of a call: its request is read, bounded, parsed and identified, once for all that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope

from autellix_backend.gateway.calls.body import bounded, parse_body
from autellix_backend.gateway.calls.call import ReceivedCall
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.engines.models import ModelLists
from autellix_backend.gateway.engines.refusals import Caller
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.requests import read_headers
from autellix_backend.gateway.sessions.session_tokens import TOKEN_HEADER, SessionTokens
from autellix_backend.gateway.tenancy.intake import LONG_BODY_BYTES, BodyHold
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.identity.identity import IdentityResolver, read_identity


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reception:
    """Receives the calls of all dialects."""

    tokens: SessionTokens
    resolver: IdentityResolver
    models: ModelLists
    new_id: Callable[[], str]
    """Returns an id for a call whose client gave none."""
    max_body_bytes: int

    async def receive(self, dialect: Dialect, scope: Scope, receive: Receive, hold: BodyHold) -> ReceivedCall:
        """Return the call of a request, whose body counts in the hold.

        Raises:
            GatewayError: if it is malformed, exceeds a limit, or may not use what it names.
            ClientGoneError: if the client leaves before the end of its request.
        """
        tenant, headers = hold.tenant, read_headers(scope)
        data = await hold.read(headers, receive, self.max_body_bytes, "gateway.max_body_bytes")
        body = parse_body(data, dialect)
        if tenant.limits.max_output_tokens is not None:
            body = bounded(body, tenant.limits, dialect)
        if body.size_bytes > LONG_BODY_BYTES:
            await hold.pause()
        if tenant.models:
            tenant.check_model(body.model)
        # A single engine answers for itself.
        if len(self.models.pool.handles) > 1:
            await self.models.check(body.model)
        try:
            named = read_identity(headers, body.fields, self.new_id()).scoped_to(tenant.name)
        except InvalidIdentityError as error:
            raise InvalidRequestError(str(error), param=error.field) from error
        if self.tokens.is_strict or TOKEN_HEADER in headers:
            named = await self.tokens.verify(named, headers, tenant)
        identity = await self.resolver.resolve(
            named, body.fields, tenant.name, offers_tools=body.offers_tools
        )
        return ReceivedCall(
            dialect=dialect,
            tenant=tenant,
            identity=identity,
            headers=headers,
            body=body,
            caller=Caller(identity.program, tenant.name, body.model),
        )
