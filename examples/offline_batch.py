"""An offline batch: each document is a program of two calls, and a few documents are under way at a time."""

import asyncio
import os

from openai import AsyncOpenAI

import autellix

MODEL = os.environ.get("MODEL", "smollm2")
CONCURRENCY = 16
COUNT = int(os.environ.get("DOCUMENTS", "40"))
DOCUMENTS = [f"Document {number}: the sea is wide." for number in range(COUNT)]


async def ask(client, text):
    """Return the model's answer."""
    messages = [{"role": "user", "content": text}]
    answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=24)
    return answer.choices[0].message.content


@autellix.program("digest")  # every run of the function is a program
async def digest(client, document):
    """Return the keywords of a document's summary."""
    summary = await ask(client, f"Summarise: {document}")
    return await ask(client, f"Keywords of: {summary}")


async def main():
    """Digest all documents."""
    limit = asyncio.Semaphore(CONCURRENCY)
    async with AsyncOpenAI(
        base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
        timeout=3600,  # a batch is in no hurry
    ) as client:

        async def one(document):
            async with limit:
                return await digest(client, document)

        done = await asyncio.gather(*map(one, DOCUMENTS))
    print(f"{len(done)} documents; the first: {done[0]}")


asyncio.run(main())
