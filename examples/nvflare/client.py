"""A hospital's side: NVFlare's client API, as in its own examples; nothing here knows of comity's rules."""

import nvflare.client as flare
import torch
from model import Net
from torch.nn.functional import cross_entropy

from comity import Config
from comity.engine import RunPlan


def main() -> None:
    flare.init()
    hospitals = RunPlan(Config(data="heart")).everyone  # of the four each site takes its own
    own = hospitals.clients[int(flare.get_site_name().rpartition("-")[2]) - 1]
    model = Net()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        with torch.no_grad():
            accuracy = (model(own.test.x).argmax(1) == own.test.y).float().mean()
            loss = cross_entropy(model(own.train.x), own.train.y)
        steps = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            steps.zero_grad()
            cross_entropy(model(own.train.x), own.train.y).backward()
            steps.step()
        flare.send(
            flare.FLModel(
                params=model.state_dict(),
                metrics={"accuracy": float(accuracy), "loss": float(loss)},
                meta={"NUM_STEPS_CURRENT_ROUND": len(own.train)},
            )
        )


if __name__ == "__main__":
    main()
