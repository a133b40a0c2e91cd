import asyncio

from aiohttp import web
from harness import ask_async, ask_in_tasks, ask_in_threads
from openai import AsyncOpenAI, OpenAI
from web_users import Users


def serve(url, port):
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="key")
    plain = OpenAI(base_url=f"{url}/v1", api_key="key")

    async def tasks(request):
        return web.Response(text=await ask_in_tasks(client, request.match_info["task"]))

    async def threads(request):
        return web.Response(text=await asyncio.to_thread(ask_in_threads, plain, request.match_info["task"]))

    async def streams(request):
        task = request.match_info["task"]
        await ask_async(client, f"{task} plan")

        async def body():
            yield (await ask_in_tasks(client, task)).encode()

        return web.Response(body=body())

    app = web.Application()
    app.add_routes(
        [
            web.get("/tasks/{task}", tasks),
            web.get("/threads/{task}", threads),
            web.get("/streams/{task}", streams),
        ]
    )
    asyncio.set_event_loop(asyncio.new_event_loop())
    web.run_app(app, host="127.0.0.1", port=port, print=None, handle_signals=False)


users = Users(serve)


def tasks(url, task):
    users.ask(url, f"tasks/{task}")


def threads(url, task):
    users.ask(url, f"threads/{task}")


def streams(url, task):
    users.ask(url, f"streams/{task}")
