"""The least that a gateway of FastAPI, uvicorn and aiohttp does: `plain_proxy.py ENGINE PORT [--http h11]`.

It passes calls on with the server's settings of `autellix serve`, and reads nothing in them. With
`--http h11` it reads requests as uvicorn does where httptools is not installed.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from autellix_backend.cli.server import freeze_heap, server_config

EVENTS = "text/event-stream"


def create_app(engine: str) -> FastAPI:
    """Return the app in front of an engine."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as app.state.engine:
            freeze_heap()
            yield

    app = FastAPI(openapi_url=None, lifespan=lifespan)

    @app.get("/health")
    async def health() -> Response:
        return Response()

    @app.post("/{path:path}")
    async def pass_on(path: str, request: Request) -> Response:
        body = await request.body()
        headers = {"content-type": request.headers["content-type"]}
        answer = await app.state.engine.post(f"{engine}/{path}", data=body, headers=headers)
        if answer.content_type != EVENTS:
            content = await answer.read()
            return Response(content, answer.status, media_type=answer.content_type)

        async def pieces() -> AsyncIterator[bytes]:
            async with answer:
                async for piece in answer.content.iter_any():
                    yield piece

        return StreamingResponse(pieces(), answer.status, media_type=EVENTS)

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", metavar="URL")
    parser.add_argument("port", type=int)
    parser.add_argument("--http", choices=["h11", "httptools"])
    args = parser.parse_args()
    config = server_config(create_app(args.engine), lifespan="on")
    config.http = args.http or config.http
    config.host, config.port = "127.0.0.1", args.port
    uvicorn.Server(config).run()
