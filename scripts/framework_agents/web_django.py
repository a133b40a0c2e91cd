from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path
from harness import ask, ask_in_tasks, ask_in_threads
from openai import AsyncOpenAI, OpenAI
from web_users import Users

settings.configure(ROOT_URLCONF="web_django", ALLOWED_HOSTS=["*"], SECRET_KEY="key", DEBUG=False)
django.setup()
CLIENTS = {}


def plain_view(request, task):
    return HttpResponse(ask_in_threads(CLIENTS["plain"], task))


async def async_view(request, task):
    return HttpResponse(await ask_in_tasks(CLIENTS["async"], task))


def streamed_view(request, task):
    ask(CLIENTS["plain"], f"{task} plan")

    def body():
        yield ask_in_threads(CLIENTS["plain"], task)

    return StreamingHttpResponse(body())


urlpatterns = [
    path("threads/<task>", plain_view),
    path("tasks/<task>", async_view),
    path("streams/<task>", streamed_view),
]


def make_clients(url):
    CLIENTS["plain"] = OpenAI(base_url=f"{url}/v1", api_key="key")
    CLIENTS["async"] = AsyncOpenAI(base_url=f"{url}/v1", api_key="key")


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *args):
        pass


def serve_wsgi(url, port):
    make_clients(url)
    application = get_wsgi_application()
    make_server("127.0.0.1", port, application, server_class=Server, handler_class=Quiet).serve_forever()


def serve_asgi(url, port):
    import uvicorn

    make_clients(url)
    uvicorn.run(get_asgi_application(), port=port, log_level="error", lifespan="off")


wsgi, asgi = Users(serve_wsgi), Users(serve_asgi)


def tasks(url, task):
    asgi.ask(url, f"tasks/{task}")


def threads(url, task):
    wsgi.ask(url, f"threads/{task}")


def streams(url, task):
    wsgi.ask(url, f"streams/{task}")
