from flask import Flask
from harness import ask, ask_in_threads
from openai import OpenAI
from web_users import Users


def serve(url, port):
    app = Flask("app")
    client = OpenAI(base_url=f"{url}/v1", api_key="key")

    @app.get("/threads/<task>")
    def threads(task):
        return ask_in_threads(client, task)

    @app.get("/streams/<task>")
    def streams(task):
        ask(client, f"{task} plan")

        def body():
            yield ask_in_threads(client, task)

        return body()

    app.run(port=port, threaded=True)


users = Users(serve)


def threads(url, task):
    users.ask(url, f"threads/{task}")


def streams(url, task):
    users.ask(url, f"streams/{task}")
