"""A web service: each request is a program of its own. Needs `pip install fastapi uvicorn`."""

import asyncio
import os

import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from pydantic import BaseModel

import autellix  # noqa: F401 - the only line to add

client = AsyncOpenAI(
    base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
)
MODEL = os.environ.get("MODEL", "smollm2")

app = FastAPI()


class Question(BaseModel):
    """The body of a request."""

    text: str


async def ask(text):
    """Return the model's answer."""
    messages = [{"role": "user", "content": text}]
    answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=32)
    return answer.choices[0].message.content


@app.post("/questions")
async def answer_question(question: Question):
    """Look at the question from two sides at once, then answer."""
    views = await asyncio.gather(ask(f"For: {question.text}"), ask(f"Against: {question.text}"))
    return {"answer": await ask(f"Weigh these: {views}")}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8080")))
