"""A chat of several turns: one session and one program, that later turns continue by its id."""

import os

from openai import OpenAI

import autellix

client = OpenAI(
    base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
)
MODEL = os.environ.get("MODEL", "smollm2")


def take_turn(conversation, history, text, goes_on):
    """Answer one message; the turns of a conversation may come from different requests or threads."""
    history.append({"role": "user", "content": text})
    # The service of the program counts over all turns. The last one ends it, or ten idle minutes.
    session = autellix.session(id=conversation, continues=goes_on)
    with session, autellix.program("chat", id=f"{conversation}-chat", continues=goes_on):
        answer = client.chat.completions.create(model=MODEL, messages=history, max_tokens=32)
    history.append({"role": "assistant", "content": answer.choices[0].message.content})
    return history[-1]["content"]


history = []
for text in ("Hello! Who are you?", "What can you do?", "Goodbye."):
    print(text, "->", take_turn("conversation-7", history, text, goes_on=text != "Goodbye."))
