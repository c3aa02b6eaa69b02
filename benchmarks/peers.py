"""The round of benchmarks/round.py by other frameworks, in turn with ours: same net, data, steps, in one process.

    python benchmarks/peers.py flwr              # Flower's FedAvg and a client as in its quick start, in this process
    python -m venv /tmp/fluke && /tmp/fluke/bin/pip install torch==2.13.0 fluke-fl .
    /tmp/fluke/bin/python benchmarks/peers.py fluke

Each as its users run it: torch's own threads, clients one after another, no evaluation.
"""

import logging
import os
import sys
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import torch

from comity.data import Federation
from comity.nn import MODELS
from round import BATCH, CIFAR, CLASSES, CORES, LR, Eager, Here, Spread, as_usual, federation, seconds

CLIENTS, SAMPLES, MODEL, REPEATS = 20, 100, "cnn", 5


class Flwr:
    def __init__(self, data: Federation) -> None:
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp.strategy import FedAvg

        from comity.flower import InProcessGrid

        logging.getLogger("flwr").setLevel(logging.ERROR)
        client, app = Eager(data, MODEL, "FedAvg"), ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            client.net.load_state_dict(message.content["arrays"].to_torch_state_dict())
            client.epoch(client.loaders[int(context.node_config["partition-id"])], client.net)
            arrays, metrics = ArrayRecord(client.net.state_dict()), MetricRecord({"num-examples": SAMPLES})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        self.grid = InProcessGrid(app, len(data), wire=False)
        self.strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
        self.start = ArrayRecord(client.net.state_dict())

    def round(self) -> None:
        torch.set_num_threads(CORES)
        self.strategy.start(self.grid, self.start, num_rounds=1)


class Fluke:
    def __init__(self, data: Federation) -> None:
        # torchvision, which fluke imports for its data sets, insists on operators that a build for another torch lacks
        self.missing = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            self.missing.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
        from fluke import DDict, FlukeENV
        from fluke.algorithms.fedavg import FedAVG
        from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader

        FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
        loaders = [
            FastDataLoader(c.train.x.contiguous(), c.train.y, num_labels=CLASSES, batch_size=BATCH, shuffle=True)
            for c in data.clients
        ]
        splitter = DataSplitter(DummyDataContainer(loaders, [None] * len(loaders), None, CLASSES))
        client = DDict(batch_size=BATCH, local_epochs=1, loss=torch.nn.CrossEntropyLoss)
        client.update(optimizer=DDict(name="SGD", lr=LR), scheduler=DDict(name="StepLR", gamma=1, step_size=1))
        options = DDict(client=client, server=DDict(weighted=True), model=as_usual(MODELS[MODEL](CIFAR, CLASSES)))
        self.federation = FedAVG(len(data), splitter, options)
        self.federation.finalize = lambda: None  # a last evaluation, and the end of its cache

    def round(self) -> None:
        torch.set_num_threads(CORES)
        self.federation.run(n_rounds=1, eligible_perc=1.0, finalize=False)


PEERS: dict[str, Any] = {"flwr": Flwr, "fluke": Fluke}


def main() -> None:
    peer = PEERS[sys.argv[1]]
    data = federation(CLIENTS, SAMPLES, CIFAR)
    ways = {"comity": Here(data, MODEL, "FedAvg"), sys.argv[1]: peer(data)}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(REPEATS + 1):
        for name, way in ways.items():
            spent = seconds(way.round)
            if repeat:
                taken[name].append(spent)
    for name, values in taken.items():
        print(f"{name}: {Spread(values)} s a round, n = {REPEATS}")


if __name__ == "__main__":
    main()
