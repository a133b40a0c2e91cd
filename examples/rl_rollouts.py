"""Rollouts for reinforcement learning: groups of short programs, all of which a training step waits for."""

import asyncio
import os
import random

from openai import AsyncOpenAI

import autellix

MODEL = os.environ.get("MODEL", "smollm2")
STEPS, PROMPTS, GROUP = 2, 3, 4  # training steps, prompts of a step, rollouts of a prompt
MAX_TURNS = 3


async def rollout(client, group, seed):
    """Play one episode and return its messages and reward."""
    chance = random.Random(seed)
    messages = [{"role": "user", "content": f"Task {group}"}]
    # One program each: it ends with the block, and the gateway forgets its context at once.
    async with autellix.program("rollout", group=group, expected_calls=MAX_TURNS):
        for _ in range(chance.randint(1, MAX_TURNS)):
            answer = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=24, temperature=1.0
            )
            observation = "The environment's answer."
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages.append({"role": "user", "content": observation})
    return messages, chance.random()


async def main():
    """Collect the rollouts of each step, then update; the update itself is your trainer's."""
    async with AsyncOpenAI(
        base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
        timeout=3600,
    ) as client:
        for step in range(STEPS):
            # Leaving the session ends what is left of the step.
            async with autellix.session(step=step):
                rollouts = (
                    rollout(client, f"{step}.{prompt}", seed=100 * step + 10 * prompt + member)
                    for prompt in range(PROMPTS)
                    for member in range(GROUP)
                )
                episodes = await asyncio.gather(*rollouts)
            mean = sum(reward for _, reward in episodes) / len(episodes)
            print(f"step {step}: {len(episodes)} rollouts, mean reward {mean:.2f}")


asyncio.run(main())
