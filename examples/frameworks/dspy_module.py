"""DSPy: `pip install dspy git+https://github.com/autellix/autellix`."""

import dspy

import autellix  # the only line to add


class Essay(dspy.Module):
    """Two steps of one program."""

    def __init__(self):
        super().__init__()
        self.plan, self.write = dspy.Predict("topic -> plan"), dspy.Predict("plan -> text")

    def forward(self, topic):
        """Plan, then write."""
        return self.write(plan=self.plan(topic=topic).plan)


lm = dspy.LM("openai/smollm2", api_base="http://127.0.0.1:8000/v1", api_key="unused", cache=False)
dspy.configure(lm=lm)
print(Essay()(topic="the sea").text)
