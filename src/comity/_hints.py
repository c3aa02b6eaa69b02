"""Names in other frameworks and their equivalents in comity, for hints in error messages.

One line per concept: its names in other frameworks (PFLlib, Flower, FL-bench, fluke), and ours. A name is looked up
only if comity does not know it; a test checks that the answers exist.
"""

from collections.abc import Mapping

from comity._labels import spelling

OPTIONS = {
    "algorithm algo aggregation-algorithm strategy": "method",
    "aggregator aggregation agg": "rule",
    "m net arch backbone": "model",
    "dataset dataset-name": "data",
    "nc num-clients n-clients num-users n-parties num-supernodes client-num client-num-in-total": "clients",
    "gr global-rounds num-rounds n-rounds num-server-rounds round comm-round comm-rounds global-epoch global-epochs "
    "communication-rounds": "rounds",
    "ls e E local-epochs local-ep local-epoch": "epochs",
    "local-steps local-iterations local-iters steps-per-round": "steps",
    "lbs b B local-bs local-batch-size batchsize bs": "batch-size",
    "local-learning-rate learning-rate": "lr",
    "ld ldg learning-rate-decay learning-rate-decay-gamma lr-gamma": "lr-decay",
    "slr server-learning-rate global-lr": "server-lr",
    "jr join-ratio frac fraction fraction-fit fraction-train eligible-perc client-fraction "
    "client-num-per-round clients-per-round": "participation",
    "cdr client-drop-rate": "dropout",
    "dev did device-id cpu gpu gpu-id cuda use-cuda": "device",
    "eg eval-gap eval-freq eval-interval test-gap test-interval": "eval-every",
    "moment evaluation-point": "eval-point",
    "nnc num-new-clients": "newcomers",
    "ften fine-tuning-epoch-new": "newcomer-rounds",
    "sfn save-folder-name save-folder": "save-models",
    "go goal o output output-dir save-dir log-dir logdir exp-name name": "out",
    "test-ratio test-size test-fraction": "test-share",
    "val-ratio val-size val-fraction": "val-share",
    "num-workers n-workers jobs n-jobs": "workers",
    "wd": "weight-decay",
    "opt optim optimiser": "optimizer",
    "random-seed training-random-seed": "seed",
    "niid noniid non-iid iid": "partition",
    "dir dirichlet dir-alpha dirichlet-alpha beta-dirichlet": "partition.alpha",
    "classes-per-client class-per-client shards": "partition.num_classes_per_partition",
    "privacy dp dp-sigma noise-multiplier": "dp-noise",
    "lamda lambda": "method.lam",
    "bt": "method.beta",
    "lrp p-learning-rate": "method.personal_lr",
    "M": "method.models",
    "sg": "method.sigma",
    "al alk alphaK": "method.alpha",
    "mo": "method.mu",
    "pls plocal-epochs plocal-steps": "method.personal_epochs",
    "fte fine-tuning-epochs fts fine-tuning-steps": "method.finetune_epochs",
    "et": "method.rate",
    "s rand-percent": "method.share",
    "p layer-idx": "method.top",
    "klw kl-weight": "method.kappa",
    "t times seeds n-runs repeat pv prev": "repetitions are seeds: comity study --seeds 3",
    "nb ncl num-classes n-classes": "the number of classes is read from the data",
    "ab auto-break tc top-cnt": "runs do not stop early; the best round by validation is reported (--val-share)",
    "rjr random-join-ratio": "the participation rate is constant (--participation)",
    "tsr train-slow-rate ssr send-slow-rate ts time-select tth time-threthold": "slow clients are not simulated; "
    "--dropout simulates clients that drop out",
    "use-wandb use-tensorboard use-mlflow monitor": "experiment trackers are chosen with --track",
    "v verbose": "progress is printed by default",
    "fs few-shot": "few-shot clients are not simulated",
    "fd feature-dim": "the number of features is the model's own",
    "vs vocab-size ml max-len": "text is read from columns of a table (--data.text)",
    "L dlr dr-learning-rate nd noise-dim glr generator-learning-rate hd hidden-dim se server-epochs lf "
    "localize-feature-extractor mlr mentee-learning-rate Ts T-start Te T-end itk fsb first-stage-bound ca "
    "fedcross-alpha cmss collaberative-model-select-strategy": "it belongs to a method that comity does not have",
    "dlg dlg-eval dlgg dlg-gap bnpc batch-num-per-client": "gradient inversion is not simulated",
}
"""Options by their names elsewhere. The answer is an option of comity or, if it contains a space, a sentence."""

COMMANDS = {
    "train fit simulate": "run",
    "sweep grid compare": "study",
    "benchmark leaderboard": "bench",
    "merge average combine": "aggregate",
    "plot page html": "report",
    "ls methods rules models": "list",
    "dataset datasets partition": "data",
    "infer inference": "predict",
    "onnx": "export",
}
"""Commands by other names."""

ALIASES: Mapping[str, Mapping[str, str]] = {
    "method": {
        "PerAvg PerFedAvg-FO Meta-FedAvg": "Per-FedAvg",
        "FedAvgDBE DBE": "FedDBE",
        "Standalone Separate LocalOnly": "Local",
        "FedAvg-FT FedAvgFT FineTune": "FedAvg with --method.personal_model finetune",
        "HeurFedAMP": "FedAMP with --method.form cosine",
        "FedSGD": "FedAvg with --steps 1",
        "FedAvgM": "FedAvg with --server-momentum",
    },
    "rule": {
        "Average Avg Weighted WeightedAverage FedAvg": "Mean",
        "PCGrad": "Projection with --rule.order sequential",
        "RFA GeoMed": "GeometricMedian",
        "NashMTL AlignedMTL IMTLG": "TorchJD with --rule.weighting",
    },
    "model": {
        "dnn fc 2nn amazonmlp": "mlp",
        "mlr mclr lr softmax linear": "logistic",
        "lenet": "lenet5",
        "harcnn": "cnn1d",
        "fedavgcnn": "cnn",
        "alexnet googlenet mobilenet mobilenetv2 vgg vgg11 vgg16 densenet densenet121": "torchvision:NAME, as "
        "torchvision:alexnet",
    },
    "partition": {"dir noniid niid lda labelskew": "dirichlet", "pat shards shard": "pathological"},
    "guard": {"on yes true": "mixture"},
}
"""Components by other names; the first word of each answer is the component."""

NEAREST: Mapping[str, Mapping[str, str]] = {
    "method": {
        "MOON FedDyn FedNTD FedADMM": "FedProx",
        "FedNova": "FedAvg with --steps",
        "FedOpt FedAdam FedYogi FedAdagrad": "FedAvg with --server-momentum",
        "FedMTL MOCHA": "FedU",
        "FedPHP SuPerFed Floco": "APFL",
        "APPLE pFedGraph": "FedFomo",
        "FedDistill FD FedMD FedFed FedPCL FedGH FedGen": "FedProto",
        "FML FedKD MetaFed": "Ditto",
        "FedCAC pFedLA": "FedALA",
        "FedGC FedLC CCVR": "FedROD",
        "pFedSim FedAP": "FedAMP",
        "FedAH": "FedRep",
        "PeFLL": "pFedHN",
        "FedCross Elastic FedSR FedIIR ADCOL FLUTE": "FedAvg",
        "CFL FedEM PACFL FedGroup": "IFCA",
        "qFedAvg QFFL AFL": "FedAvg with --rule FairDescent",
        "Krum MultiKrum TrimmedMean FedTrimmedAvg FedMedian Bulyan": "FedAvg with --rule GeometricMedian",
    },
    "rule": {"Krum MultiKrum TrimmedMean Median Bulyan": "GeometricMedian"},
    "partition": {"exdir": "dirichlet"},
    "model": {
        "lstm bilstm": "cnn1d, for series; text goes into a table (--data.text) and mlp",
        "fasttext textcnn transformer": "mlp, on a column of text (--data.text)",
    },
}
"""The closest component to one that comity lacks; the first word of each answer is the component."""


def option_hint(name: str) -> str:
    """Our option for an unknown one, a sentence, or ``""``; case-sensitive if necessary: ``-m`` and ``-M``."""
    typed = name.lstrip("-").replace("_", "-")
    return next((ours for names, ours in OPTIONS.items() if typed in names.split()), "")


def command_hint(name: str) -> str:
    """Our command for an unknown one, or ``""``."""
    return next((ours for names, ours in COMMANDS.items() if name in names.split()), "")


def name_hint(kind: str, name: str) -> str:
    """A sentence about an unknown component, or ``""``."""
    for table, words in (
        (ALIASES, "unknown {} {!r}; did you mean {}?"),
        (NEAREST, "comity has no {} {}; the nearest is {}"),
    ):
        for names, ours in table.get(kind, {}).items():
            if spelling(name) in map(spelling, names.split()):
                return words.format(kind, name, ours)
    return ""
