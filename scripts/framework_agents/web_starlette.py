import uvicorn
from harness import ask_async, ask_in_tasks, ask_in_threads
from openai import AsyncOpenAI, OpenAI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route
from web_users import Users


def serve(url, port):
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="key")
    plain = OpenAI(base_url=f"{url}/v1", api_key="key")

    async def tasks(request):
        return PlainTextResponse(await ask_in_tasks(client, request.path_params["task"]))

    def threads(request):
        return PlainTextResponse(ask_in_threads(plain, request.path_params["task"]))

    async def streams(request):
        task = request.path_params["task"]
        await ask_async(client, f"{task} plan")

        async def body():
            yield await ask_in_tasks(client, task)

        return StreamingResponse(body())

    inner = Starlette(routes=[Route("/streams/{task}", streams)])
    routes = [Route("/tasks/{task}", tasks), Route("/threads/{task}", threads), Mount("/inner", inner)]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="error")


users = Users(serve)


def tasks(url, task):
    users.ask(url, f"tasks/{task}")


def threads(url, task):
    users.ask(url, f"threads/{task}")


def streams(url, task):
    users.ask(url, f"inner/streams/{task}")
