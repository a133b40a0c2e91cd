import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from harness import ask_async, ask_in_tasks, ask_in_threads
from openai import AsyncOpenAI, OpenAI
from web_users import Users


def serve(url, port):
    app = FastAPI()
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="key")
    plain = OpenAI(base_url=f"{url}/v1", api_key="key")

    @app.get("/tasks/{task}")
    async def tasks(task: str):
        return await ask_in_tasks(client, task)

    @app.get("/threads/{task}")
    def threads(task: str):
        return ask_in_threads(plain, task)

    @app.get("/streams/{task}")
    async def streams(task: str):
        await ask_async(client, f"{task} plan")

        async def body():
            yield await ask_in_tasks(client, task)

        return StreamingResponse(body())

    uvicorn.run(app, port=port, log_level="error")


users = Users(serve)


def tasks(url, task):
    users.ask(url, f"tasks/{task}")


def threads(url, task):
    users.ask(url, f"threads/{task}")


def streams(url, task):
    users.ask(url, f"streams/{task}")
