import os
import threading

os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False"}

import gradio
from gradio_client import Client
from harness import ask, ask_in_tasks, ask_in_threads
from openai import AsyncOpenAI, OpenAI

LOCK = threading.Lock()
APPS = {}


def launch(url):
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="key")
    plain = OpenAI(base_url=f"{url}/v1", api_key="key")

    async def tasks(task):
        return await ask_in_tasks(client, task)

    def threads(task):
        return ask_in_threads(plain, task)

    def streams(task):
        yield ask(plain, f"{task} plan")
        yield ask_in_threads(plain, task)

    with gradio.Blocks() as app:
        box, out = gradio.Textbox(), gradio.Textbox()
        for event in (tasks, threads, streams):
            button = gradio.Button(event.__name__)
            button.click(event, box, out, api_name=event.__name__, concurrency_limit=8)
    _, address, _ = app.launch(prevent_thread_lock=True, quiet=True, show_error=True)
    return address


def ask_app(url, event, task):
    with LOCK:
        if not APPS:
            APPS["address"] = launch(url)
    Client(APPS["address"], verbose=False).predict(task, api_name=f"/{event}")


def tasks(url, task):
    ask_app(url, "tasks", task)


def threads(url, task):
    ask_app(url, "threads", task)


def streams(url, task):
    ask_app(url, "streams", task)
