"""An extension that keeps the predictions of a run's models, for benchmarks/guard_natural.py."""

import numpy as np
from numpy.typing import NDArray

from comity.engine import Extension, Judgement, predictor

Predictions = dict[str, NDArray[np.generic]]
RECORDS: dict[int, Predictions] = {}
"""By client, emptied by who reads them: probabilities (samples, classes) of ``model round split``, and labels."""


class Recorder(Extension):
    """Keeps what own, federated and common model predict.

    Options:
        rounds: in which rounds, separated by blanks
    """

    baselines = ("train",)

    rounds: str = "30 33 36 38"

    def judge(self, judgement: Judgement) -> None:
        site, client, cid = judgement.site, judgement.client, judgement.client.id
        if str(client.round) not in self.rounds.split():
            return
        data, own = client.data, {on: models for on, models in site.baselines.items() if models.has(cid)}
        splits = {"test": data.test, "train": data.train} | ({"val": data.val} if data.val_unseen else {})
        kept = RECORDS.setdefault(cid, {})
        for name, split in splits.items():
            if not len(split):
                continue
            known = {"federated": predictor(client, judgement.model)}
            if judgement.common is not None and judgement.common is not judgement.model:
                known["common"] = predictor(client, judgement.common)
            for model, predict in known.items():
                kept[f"{model} {client.round} {name}"] = predict(split).exp().numpy()
            kept[f"labels {client.round} {name}"] = split.y.numpy().astype(np.int16)
            for on, models in own.items():
                if name != "train":
                    kept[f"own {on} {name}"] = models.predict(cid, split).exp().numpy()
