"""GRPO in small: groups of rollouts with a tool, a policy gradient step, new weights for the running engine.

Start a gateway whose engine takes new weights, and run this with the same folder of a small model:

    VLLM_SERVER_DEV_MODE=1 autellix serve FOLDER
    MODEL=FOLDER python examples/grpo.py
"""

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
import urllib.request

import torch
import transformers
from openai import AsyncOpenAI
from torch.nn.utils.rnn import pad_sequence

import autellix

MODEL = os.environ["MODEL"]
BASE_URL = os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1")
STEPS, GROUPS, SIZE = (
    int(os.environ.get(name, default)) for name, default in [("STEPS", 4), ("GROUPS", 4), ("SIZE", 8)]
)
MAX_TURNS, MAX_TOKENS = 6, 48
TASK = "Write with many letters e. " + "The tool tells you how many there are, and you may try again. " * 20


def count_letters(text):
    """Return the share of letters that are an e: the environment's tool, and the reward."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    return letters.count("e") / max(1, len(letters))


async def rollout(client, group, seed):
    """Play one episode; return its reward, and the tokens of each call's prompt and answer."""
    messages = [{"role": "user", "content": f"Task {group}. {TASK}"}]
    calls, share, chance = [], 0.0, random.Random(seed)
    async with autellix.program("rollout", group=group, expected_calls=MAX_TURNS):
        for _ in range(chance.randint(1, MAX_TURNS)):
            answer = await client.chat.completions.create(
                model=MODEL,
                messages=messages,
                max_tokens=chance.randint(8, MAX_TOKENS),
                temperature=1.0,
                # The engine's own tokens: text that is tokenized again may differ.
                extra_body={"return_token_ids": True},
            )
            (choice,) = answer.choices
            calls.append((answer.prompt_token_ids, choice.token_ids))
            await asyncio.sleep(chance.uniform(0.05, 0.5))
            share = count_letters(choice.message.content or "")
            messages.append({"role": "assistant", "content": choice.message.content or ""})
            messages.append({"role": "user", "content": f"The share of e is {share:.2f}. Try again."})
    return share, calls


async def play_group(client, step, group):
    """Play the rollouts of one prompt; return them, and when the last one ended."""
    members = (
        rollout(client, f"{step}.{group}", 1000 * step + SIZE * group + member) for member in range(SIZE)
    )
    return await asyncio.gather(*members), time.monotonic()


def update(model, optimizer, groups):
    """Take one step of the policy gradient: a rollout is as good as its reward is above its group's."""
    optimizer.zero_grad()
    for episodes in groups:
        rewards = [reward for reward, _ in episodes]
        mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
        calls = [
            (prompt, answer, (reward - mean) / (spread + 1e-4) / len(calls))
            for reward, calls in episodes
            for prompt, answer in calls
        ]
        # Padded at the right, to which no earlier token attends.
        rows = [torch.tensor([*prompt, *answer]) for prompt, answer, _ in calls]
        logprobs = torch.log_softmax(model(pad_sequence(rows, batch_first=True)).logits.float(), -1)
        loss = torch.zeros(())
        for row, (prompt, answer, advantage) in zip(logprobs, calls, strict=True):
            places = torch.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
            loss -= advantage * row[places, torch.tensor(answer)].mean()
        (loss / (len(groups) * len(episodes))).backward()
    optimizer.step()


def load_weights(model, folder):
    """Have the engine finish what runs, drop its caches, read the new weights, and go on."""
    model.save_pretrained(folder)
    engines = request(BASE_URL.removesuffix("/v1") + "/autellix/v1/engines")["engines"]
    for url in [engine["base_url"] for engine in engines]:
        request(f"{url}/pause?mode=wait", {})
        request(f"{url}/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        request(f"{url}/resume", {})


def request(url, body=None):
    """Return a JSON answer."""
    data = None if body is None else json.dumps(body).encode()
    key = os.environ.get("AUTELLIX_API_KEY", "unused")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as response:
        return json.load(response)


async def main(folder):
    """Train for some steps."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    key = os.environ.get("AUTELLIX_API_KEY", "unused")
    async with AsyncOpenAI(base_url=BASE_URL, api_key=key, timeout=3600) as client:
        for step in range(STEPS):
            began_s = time.monotonic()
            async with autellix.session(step=step):
                groups = await asyncio.gather(*(play_group(client, step, group) for group in range(GROUPS)))
            ends_s = [end_s - began_s for _, end_s in groups]
            await asyncio.to_thread(update, model, optimizer, [episodes for episodes, _ in groups])
            await asyncio.to_thread(load_weights, model, folder)
            reward = statistics.fmean(reward for episodes, _ in groups for reward, _ in episodes)
            print(
                f"step {step}: reward {reward:.3f}, rollouts {max(ends_s):.1f} s, last of a group "
                f"{statistics.fmean(ends_s):.1f} s, with update {time.monotonic() - began_s:.1f} s",
                flush=True,
            )


with tempfile.TemporaryDirectory() as weights:
    asyncio.run(main(weights))
