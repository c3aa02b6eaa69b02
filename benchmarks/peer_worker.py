"""One peer framework in a process of its own environment: benchmarks/peers.py starts it and asks for rounds.

    python benchmarks/peer_worker.py PEER FOLDER [OPTION]

FOLDER has work.json (net, batch size, learning rate) and work.npz (samples per client, initial weights). Each line on
standard input asks for one answer, a line of JSON on standard output: ``round`` for one round and its seconds of clock
and processor and its optimiser steps, ``loss`` for the mean training loss. Neither comity nor torch is needed to import
this file: FedJAX's environment has neither.
"""

import importlib
import importlib.metadata
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


class Work:
    """What every peer is to do: clients' samples, the net with its initial weights, batch size and learning rate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = json.loads((folder / "work.json").read_text())
        self.net, self.batch, self.lr, self.classes = (about[name] for name in ("net", "batch", "lr", "classes"))
        with np.load(folder / "work.npz") as held:
            self.x, self.y, self.test_x, self.test_y = (held[name] for name in ("x", "y", "test_x", "test_y"))
            self.weights = [held[f"weights{i}"] for i in range(about["weights"])]
        self.clients, self.samples, *shape = self.x.shape
        self.shape = tuple(shape)


class Peer:
    """One framework; a subclass says how its users run a round."""

    packages: tuple[str, ...]

    def __init__(self, work: Work, option: str = "") -> None:
        self.work = work
        self.steps = 0

    def versions(self) -> str:
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in self.packages)

    def round(self) -> None:
        raise NotImplementedError

    def loss(self) -> float:
        """Mean loss of the clients' models on their training samples."""
        raise NotImplementedError


class Torch(Peer):
    """A peer that trains a torch module; its optimiser steps are counted."""

    def __init__(self, work: Work, option: str = "") -> None:
        super().__init__(work, option)
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch = torch
        register_optimizer_step_post_hook(self._count)
        self.x, self.y = torch.from_numpy(work.x), torch.from_numpy(work.y)
        self.net = self.module()

    def _count(self, optimiser: Any, *_: object) -> None:
        self.steps += optimiser.param_groups[0]["lr"] == self.work.lr  # a server's own step has another rate

    def module(self) -> Any:
        """The net as it is usually written: a ReLU before the pooling; ``body`` and ``head``."""
        nn, work = self.torch.nn, self.work
        sizes = [(w.shape[0], w.shape[1]) for w in work.weights if w.ndim > 1]
        layers: list[Any] = []
        if work.net == "cnn":
            for channels, inputs in sizes[:2]:
                layers += [nn.Conv2d(inputs, channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten()]
        for outputs, inputs in sizes[2 if work.net == "cnn" else 0 : -1]:
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        net = nn.Sequential()
        net.add_module("body", nn.Sequential(*layers))
        net.add_module("head", nn.Linear(sizes[-1][1], sizes[-1][0]))
        for parameter, values in zip(net.parameters(), work.weights, strict=True):
            parameter.data.copy_(self.torch.from_numpy(values))
        return net

    def model(self) -> Any:
        """The module with the global model after the last round."""
        return self.net

    def loss(self) -> float:
        with self.torch.no_grad():
            outputs = self.model()(self.x.flatten(0, 1))
        return float(self.torch.nn.functional.cross_entropy(outputs, self.y.flatten()))


class Flwr(Torch):
    """Flower's FedAvg and a client as in its quick start, all in this process; records are handed over."""

    packages = ("flwr", "torch")

    def __init__(self, work: Work, option: str = "") -> None:
        os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
        super().__init__(work, option)
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp.strategy import FedAvg
        from torch.utils.data import DataLoader, TensorDataset

        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        from in_process import InProcessGrid

        logging.getLogger("flwr").setLevel(logging.ERROR)
        torch, net, app = self.torch, self.net, ClientApp()
        loaders = [
            DataLoader(TensorDataset(x, y), work.batch, shuffle=True) for x, y in zip(self.x, self.y, strict=True)
        ]

        @app.train()
        def train(message: Message, context: Context) -> Message:
            net.load_state_dict(message.content["arrays"].to_torch_state_dict())
            optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
            criterion = torch.nn.CrossEntropyLoss()
            net.train()
            for x, y in loaders[int(context.node_config["partition-id"])]:
                optimiser.zero_grad()
                criterion(net(x), y).backward()
                optimiser.step()
            arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": work.samples})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        self.grid = InProcessGrid(app, work.clients, wire=False)
        self.strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
        self.arrays = ArrayRecord(net.state_dict())

    def round(self) -> None:
        self.arrays = self.strategy.start(self.grid, self.arrays, num_rounds=1).arrays

    def model(self) -> Any:
        self.net.load_state_dict(self.arrays.to_torch_state_dict())
        return self.net


class Fluke(Torch):
    """fluke's FedAVG with its FastDataLoader."""

    packages = ("fluke-fl", "torch")

    def __init__(self, work: Work, option: str = "") -> None:
        super().__init__(work, option)
        # torchvision, which fluke imports for its data sets, insists on operators that a build for another torch lacks
        self.missing = self.torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(self.torch.ops.torchvision, name):
                self.missing.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
        from fluke import DDict, FlukeENV
        from fluke.algorithms.fedavg import FedAVG
        from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader

        FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
        loaders = [
            FastDataLoader(x, y, num_labels=work.classes, batch_size=work.batch, shuffle=True)
            for x, y in zip(self.x, self.y, strict=True)
        ]
        splitter = DataSplitter(DummyDataContainer(loaders, [None] * len(loaders), None, work.classes))
        client = DDict(batch_size=work.batch, local_epochs=1, loss=self.torch.nn.CrossEntropyLoss)
        client.update(optimizer=DDict(name="SGD", lr=work.lr), scheduler=DDict(name="StepLR", gamma=1, step_size=1))
        options = DDict(client=client, server=DDict(weighted=True), model=self.net)
        self.federation = FedAVG(work.clients, splitter, options)
        self.federation.finalize = lambda: None  # a last evaluation, and the end of its cache

    def round(self) -> None:
        self.federation.run(n_rounds=1, eligible_perc=1.0, finalize=False)

    def model(self) -> Any:
        return self.federation.server.model


class PFLlib(Torch):
    """The body of its server's loop. It reads its clients' files in each round; they are in a folder of our own."""

    packages = ("torch",)

    def __init__(self, work: Work, option: str = "") -> None:
        super().__init__(work, option)
        method, _, clone = option.partition(" ")
        self.date = os.popen(f"git -C '{clone}' log -1 --format=%cs").read().strip()
        sys.path.insert(0, f"{clone}/system")
        server = importlib.import_module(f"flcore.servers.server{method.lower().removeprefix('fed')}")
        split = importlib.import_module("flcore.trainmodel.models").BaseHeadSplit
        for part, xs, ys in (("train", work.x, work.y), ("test", work.test_x, work.test_y)):
            files = work.folder / "dataset" / "noise" / part
            files.mkdir(parents=True)
            for cid, (x, y) in enumerate(zip(xs, ys, strict=True)):
                np.savez(files / f"{cid}.npz", data=np.array({"x": x, "y": y}, dtype=object))
        (work.folder / "system").mkdir()
        os.chdir(work.folder / "system")
        off = ("random_join_ratio", "few_shot", "time_select", "auto_break", "dlg_eval", "learning_rate_decay")
        off += ("num_new_clients", "client_drop_rate", "train_slow_rate", "send_slow_rate", "fine_tuning_epoch_new")
        options = dict.fromkeys(off, 0) | {
            "model": split(self.net.body, self.net.head),
            "algorithm": method,
            "dataset": "noise",
            "device": "cpu",
            "num_classes": work.classes,
            "num_clients": work.clients,
            "join_ratio": 1.0,
            "batch_size": work.batch,
            "local_epochs": 1,
            "plocal_epochs": 1,
            "local_learning_rate": work.lr,
            "learning_rate_decay_gamma": 0.99,
            "global_rounds": 1,
            "eval_gap": 1,
            "goal": "",
            "time_threthold": 10_000,
            "top_cnt": 100,
            "save_folder_name": "items",
            "dlg_gap": 100,
            "batch_num_per_client": 2,
        }
        self.server = getattr(server, method)(SimpleNamespace(**options), 0)

    def versions(self) -> str:
        return f"PFLlib of {self.date}, {super().versions()}"

    def round(self) -> None:
        server = self.server
        server.selected_clients = server.select_clients()
        server.send_models()
        server.evaluate()
        for client in server.selected_clients:
            client.train()
        server.receive_models()
        server.aggregate_parameters()

    def loss(self) -> float:
        self.server.send_models()
        _, counts, losses = self.server.train_metrics()
        return sum(losses) / sum(counts)


class Pfl(Torch):
    """pfl-research: FederatedAveraging on its SimulatedBackend; its data sets do not shuffle."""

    packages = ("pfl", "torch")

    def __init__(self, work: Work, option: str = "") -> None:
        super().__init__(work, option)
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam.base import NNTrainHyperParams
        from pfl.metrics import Weighted
        from pfl.model.pytorch import PyTorchModel

        torch, net = self.torch, self.net
        users = [PyTorchTensorDataset((x, y)) for x, y in zip(self.x, self.y, strict=True)]
        data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(work.clients))))

        def loss(x: Any, y: Any, *, eval: bool = False) -> Any:
            net.train(not eval)
            return torch.nn.functional.cross_entropy(net(x), y)

        def metrics(x: Any, y: Any) -> dict[str, Any]:
            return {"loss": Weighted(loss(x, y, eval=True).item() * len(y), len(y))}

        net.loss, net.metrics = loss, metrics
        self.pfl_model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
        self.backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
        self.algorithm, self.params = FederatedAveraging(), NNAlgorithmParams
        self.training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch)
        self.rounds = 0

    def round(self) -> None:
        self.rounds += 1  # a second run of an algorithm resumes where the first one ended
        params = self.params(
            central_num_iterations=self.rounds,
            evaluation_frequency=1_000_000,  # the first round alone, which does not count
            train_cohort_size=self.work.clients,
            val_cohort_size=0,
        )
        self.algorithm.run(params, self.backend, self.pfl_model, self.training)


class FedJAX(Peer):
    """FedJAX's federated_averaging with its default backend, on images with the channels last, as its own data are."""

    packages = ("fedjax", "jax", "dm-haiku")

    def __init__(self, work: Work, option: str = "") -> None:
        super().__init__(work, option)
        import fedjax
        import haiku as hk
        import jax

        self.jax, self.fedjax = jax, fedjax
        x, names = np.ascontiguousarray(np.moveaxis(work.x, 2, -1)), list(self.layers())
        self.batches = fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1)
        peer = self

        class Counted(fedjax.ClientDataset):  # type: ignore[misc]
            def shuffle_repeat_batch(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
                for batch in super().shuffle_repeat_batch(*args, **kwargs):
                    peer.steps += 1
                    yield batch

        self.data = [Counted({"x": x, "y": y}) for x, y in zip(x, work.y, strict=True)]

        def forward(batch: dict[str, Any]) -> Any:
            out = batch["x"]
            for name, weight in names:
                if weight.ndim == 4:
                    out = jax.nn.relu(hk.Conv2D(weight.shape[3], 5, padding="VALID", name=name)(out))
                    out = hk.max_pool(out, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
                else:
                    out = hk.Linear(weight.shape[1], name=name)(out.reshape(len(out), -1))
                    out = out if name == "head" else jax.nn.relu(out)
            return out

        self.model = fedjax.create_model_from_haiku(
            hk.transform(forward),
            {"x": x[0, : work.batch], "y": work.y[0, : work.batch]},
            train_loss=lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
            eval_metrics={"loss": fedjax.metrics.CrossEntropyLoss()},
        )
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(self.model), fedjax.optimizers.sgd(work.lr), fedjax.optimizers.sgd(1.0), self.batches
        )
        biases = work.weights[1::2]
        params = {name: {"w": w, "b": b} for (name, w), b in zip(names, biases, strict=True)}
        self.state = self.algorithm.init(jax.tree_util.tree_map(jax.numpy.asarray, params))
        self.key = jax.random.PRNGKey(0)

    def layers(self) -> Iterator[tuple[str, Any]]:
        """Each layer's name and its weights, inputs before outputs and channels last."""
        shape: tuple[int, ...] = self.work.shape
        matrices = self.work.weights[::2]
        for i, w in enumerate(matrices):
            if w.ndim == 4:
                yield f"conv{i}", w.transpose(2, 3, 1, 0)
                shape = (w.shape[0], *((side - 4) // 2 for side in shape[1:]))
                continue
            if len(shape) == 3:
                w = w.reshape(len(w), *shape).transpose(0, 2, 3, 1).reshape(len(w), prod(shape))
                shape = ()
            yield "head" if i == len(matrices) - 1 else f"fc{i}", np.ascontiguousarray(w.T)

    def round(self) -> None:
        self.key, *keys = self.jax.random.split(self.key, self.work.clients + 1)
        clients = [(cid, data, key) for cid, (data, key) in enumerate(zip(self.data, keys, strict=True))]
        self.state, _ = self.algorithm.apply(self.state, clients)
        self.jax.block_until_ready(self.state.params)

    def loss(self) -> float:
        batches = [batch for data in self.data for batch in data.batch(batch_size=self.work.samples)]
        return float(self.fedjax.evaluate_model(self.model, self.state.params, batches)["loss"])


PEERS: dict[str, type[Peer]] = {"flwr": Flwr, "fluke": Fluke, "pfllib": PFLlib, "pfl": Pfl, "fedjax": FedJAX}


def main(name: str, folder: str, option: str = "") -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a peer prints is not an answer
    peer = PEERS[name](Work(Path(folder)), option)
    print(json.dumps({"versions": peer.versions()}), file=answers)
    for line in sys.stdin:
        if line.strip() == "loss":
            print(json.dumps({"loss": peer.loss()}), file=answers)
            continue
        peer.steps, clock, processor = 0, time.perf_counter(), time.process_time()
        peer.round()
        taken = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
        print(json.dumps(taken | {"steps": peer.steps}), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
