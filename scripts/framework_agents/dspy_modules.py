import asyncio

import dspy

IS_BATCH = True


class Halves(dspy.Module):
    def __init__(self):
        super().__init__()
        self.answer = dspy.ChainOfThought("question -> answer")

    def forward(self, question):
        halves = [
            dspy.Example(question=f"{question} SUB {half}").with_inputs("question")
            for half in ("left", "right")
        ]
        self.answer(question=f"{question} plan")
        dspy.Parallel(num_threads=2, disable_progress_bar=True)([(self.answer, half) for half in halves])
        return self.answer(question=f"{question} last")

    async def aforward(self, question):
        await self.answer.acall(question=f"{question} plan")
        await asyncio.gather(
            *(self.answer.acall(question=f"{question} SUB {half}") for half in ("left", "right"))
        )
        return await self.answer.acall(question=f"{question} last")


def lm(url):
    return dspy.LM("openai/m", api_base=f"{url}/v1", api_key="key", cache=False)


async def tasks(url, task):
    with dspy.context(lm=lm(url)):
        await Halves().acall(question=task)


def threads(url, task):
    with dspy.context(lm=lm(url)):
        Halves()(question=task)


def batch(url, tasks):
    devset = [dspy.Example(question=task, answer="x").with_inputs("question") for task in tasks]
    with dspy.context(lm=lm(url)):
        dspy.Evaluate(devset=devset, metric=lambda *_: True, num_threads=len(tasks), display_progress=False)(
            Halves()
        )
