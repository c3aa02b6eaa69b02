"""The round of benchmarks/round.py by other frameworks, in turn with ours: same net, data, steps, in one process.

    python benchmarks/peers.py flwr              # Flower's FedAvg and a client as in its quick start, in this process
    python -m venv /tmp/fluke && /tmp/fluke/bin/pip install torch==2.13.0 fluke-fl .
    /tmp/fluke/bin/python benchmarks/peers.py fluke
    python benchmarks/peers.py pfllib PATH       # a clone of PFLlib (needs h5py): FedAvg and FedRep, with evaluation

Each as its users run it: torch's own threads, clients one after another. Flower and fluke do not evaluate here; PFLlib
evaluates in every round (accuracy, AUC and the training loss), and so do we beside it (accuracy, AUC and what else
there is on the own tests).
"""

import importlib
import io
import logging
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
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

        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        from in_process import InProcessGrid

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


class PFLlib:
    """The body of its server's loop. It reads its clients' files in each round; they are in a folder of our own."""

    def __init__(self, data: Federation, clone: Path, method: str) -> None:
        sys.path.insert(0, str(clone / "system"))
        server = importlib.import_module(
            {"FedAvg": "flcore.servers.serveravg", "FedRep": "flcore.servers.serverrep"}[method]
        )
        split = importlib.import_module("flcore.trainmodel.models").BaseHeadSplit
        folder = Path(tempfile.mkdtemp(prefix="pfllib-"))
        for part in ("train", "test"):
            (folder / "dataset" / "noise" / part).mkdir(parents=True)
            for client in data.clients:
                samples = getattr(client, part)
                held = {"x": samples.x.contiguous().numpy(), "y": samples.y.numpy()}
                np.savez(folder / "dataset" / "noise" / part / f"{client.id}.npz", data=np.array(held, dtype=object))
        (folder / "system").mkdir()
        os.chdir(folder / "system")
        net = as_usual(MODELS[MODEL](CIFAR, CLASSES))
        off = ("random_join_ratio", "few_shot", "time_select", "auto_break", "dlg_eval", "learning_rate_decay")
        off += ("num_new_clients", "client_drop_rate", "train_slow_rate", "send_slow_rate", "fine_tuning_epoch_new")
        options = dict.fromkeys(off, 0) | {
            "device": "cpu",
            "dataset": "noise",
            "num_classes": CLASSES,
            "join_ratio": 1.0,
        }
        options |= {
            "model": split(net.body, net.head),
            "num_clients": len(data),
            "batch_size": BATCH,
            "local_epochs": 1,
        }
        options |= {"local_learning_rate": LR, "learning_rate_decay_gamma": 0.99, "plocal_epochs": 1, "eval_gap": 1}
        options |= {"global_rounds": 1, "algorithm": method, "goal": "", "time_threthold": 10_000, "top_cnt": 100}
        options |= {"save_folder_name": "items", "dlg_gap": 100, "batch_num_per_client": 2}
        with redirect_stdout(io.StringIO()):
            self.server = getattr(server, method)(SimpleNamespace(**options), 0)

    def round(self) -> None:
        torch.set_num_threads(CORES)
        server = self.server
        server.selected_clients = server.select_clients()
        server.send_models()
        with redirect_stdout(io.StringIO()):
            server.evaluate()
        for client in server.selected_clients:
            client.train()
        server.receive_models()
        server.aggregate_parameters()


class Evaluated(Here):
    """With an evaluation of all clients in each round."""

    def round(self) -> None:
        super().round()
        self.server.evaluate(general=False)


def main() -> None:
    data = federation(CLIENTS, SAMPLES, CIFAR)
    peer, *where = sys.argv[1:]
    if peer == "pfllib":
        clone = Path(where[0]).resolve()
        for method in ("FedAvg", "FedRep"):
            compare(
                {f"comity, {method}": Evaluated(data, MODEL, method), f"PFLlib, {method}": PFLlib(data, clone, method)}
            )
    else:
        compare({"comity": Here(data, MODEL, "FedAvg"), peer: {"flwr": Flwr, "fluke": Fluke}[peer](data)})


def compare(ways: dict[str, Any]) -> None:
    """Seconds a round of each, taken in turn."""
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
