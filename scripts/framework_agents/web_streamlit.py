"""By Streamlit's own harness for tests, which runs a script as its server does."""

import logging

from streamlit.testing.v1 import AppTest

logging.disable(logging.WARNING)


def script(url, task):
    import streamlit
    from harness import ask_in_threads
    from openai import OpenAI

    streamlit.write(ask_in_threads(OpenAI(base_url=f"{url}/v1", api_key="key"), task))


def threads(url, task):
    run = AppTest.from_function(script, args=(url, task), default_timeout=60).run()
    assert not run.exception, run.exception
