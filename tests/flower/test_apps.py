"""ClientApp and ServerApp from a configuration, a site's own data, what it keeps, and the app that is written."""

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp.mod import LocalDpMod
from flwr.common.config import flatten_dict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from grids import HASTY, kept

from comity import ComityError, Config
from comity._errors import install
from comity._write import write_text
from comity.commands import command
from comity.data import ClientData, Federation, Split
from comity.deploy import load_model
from comity.engine import RunPlan, run
from comity.flower import OwnData, client_app, server_app, write_app
from comity.flower._app import config_of, entries_of
from comity.flower._server import _link_settings, over
from comity.results import RunFolder
from in_process import InProcessGrid


def serve(app: Any, grid: InProcessGrid, settings: dict[str, Any] | None = None) -> None:
    app(grid, Context(7, 1, {}, RecordDict(), settings or {}))


def test_a_configuration_survives_flowers_flat_entries(tiny: dict[str, Any]) -> None:
    for options in (
        {},
        tiny,
        {"method": {"name": "FedPAC", "head_lr": None}, "rule": {"name": "CALM", "eps": 0.3, "scale": "layer"}},
        {"partition": {"name": "dirichlet", "alpha": 0.1}, "model": {"name": "mlp", "widths": (30, 20)}, "seed": 5},
        {"method": "FEDORA", "eval_point": "fitted", "out": "runs/here", "optimizer": "Adam", "val_share": 0.1},
    ):
        config = Config(**options)
        entries = entries_of(config)
        assert all(type(value) in (bool, int, float, str) for value in entries.values())
        # a federation's server and sites are other machines: each says for itself where it computes
        assert config_of(entries | {"flower.timeout": 3}).plain() == config.plain() | {"device": "cpu"}


def test_apps_take_the_configuration_of_the_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**tiny, method="FedRep", rule="ConFREE")
    settings = entries_of(config) | {"out": str(tmp_path / "here"), "flower.timeout": 60.0, "rounds": 2}
    serve(server_app(), InProcessGrid(client_app(), config.clients, run_config=settings), settings)
    (folder,) = (tmp_path / "here").iterdir()
    assert folder.name == "flower-7"
    found, expected = RunFolder(folder).result(), run(config.with_(rounds=2)).result
    assert found.last == expected.last
    assert found.clients == expected.clients


def test_settings_of_the_link() -> None:
    chosen = _link_settings({"timeout": 5, "timeout-trial": 2.5, "timeout-fit": 0, "wait": 9, "clients": 3})
    assert chosen["at_least"] == 3
    patience = chosen["patience"]
    assert (patience.of("fit"), patience.of("trial"), patience.start) == (5, 2.5, 9)
    assert _link_settings({"seats": "0:17, 2:18446744073709551615"})["owners"] == {0: 17, 2: 2**64 - 1}
    private = ec.generate_private_key(ec.SECP384R1()).public_key()
    (_, encoded) = private.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode().split()
    assert _link_settings({"seats": f"1:{encoded}"})["owners"] == {1: public_key_to_bytes(private)}
    for wrong in ("x:1", "1", "1:", "0:1 0:2", "1:AAAA"):
        with pytest.raises(ComityError, match=r"flower.seats has"):
            _link_settings({"seats": wrong})
    with pytest.raises(ComityError, match=r"unknown setting flower.tiemout; known: timeout"):
        _link_settings({"tiemout": 5})


# A site's own data.


def own_data(federation: Federation, change: Callable[[ClientData], ClientData] = lambda mine: mine) -> OwnData:
    """Each site loads its part of a federation."""

    def load(context: Context) -> ClientData:
        return change(federation.clients[int(context.node_config["partition-id"])])

    return OwnData(federation.shape, federation.classes, load)


def test_a_sites_own_data_are_loaded_where_they_are(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Each node sees its own samples alone, and learns the same as from the federation; Local is never cached."""
    config = Config(**(tiny | {"method": "FedRep", "rule": "ConFREE", "reference": "auto"}))
    loaded: list[int] = []

    def noted(mine: ClientData) -> ClientData:
        loaded.append(mine.id)
        return mine

    own = own_data(RunPlan(config).site.federation, noted)
    done = over(InProcessGrid(client_app(config, own), config.clients), config.with_(out=tmp_path / "run"), own)
    here = run(config)
    assert torch.equal(done.server.theta, here.server.theta)
    assert sorted(loaded) == sorted(3 * list(range(config.clients)))  # the run, local training, and that repeated
    assert done.columns == {key: value for key, value in here.columns.items() if key not in ("S-acc", "G-acc")}
    assert len(done.federation) == config.clients
    assert done.federation.counts.sum() == 0  # the server has no data
    assert done.result.transfer.local == here.result.transfer.local
    assert not (tmp_path / ".local").exists()


def test_sites_with_and_without_validation_data_go_together(tiny: dict[str, Any]) -> None:
    config = Config(**tiny, val_share=0.2)

    def without(mine: ClientData) -> ClientData:
        return mine if mine.id else replace(mine, val=Split(mine.val.x[:0], mine.val.y[:0]))

    own = own_data(RunPlan(config).site.federation, without)
    done = over(InProcessGrid(client_app(config, own), config.clients), config, own)
    assert "L-acc" in done.columns
    assert "val-acc" not in done.columns


# What a site keeps.


def test_a_site_has_its_own_model_and_nobody_else_has(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**(tiny | {"method": "FedRep", "clients": 2, "rounds": 2, "reference": "auto"}))
    folders = [tmp_path / str(cid) for cid in range(2)]
    grid = InProcessGrid(client_app(config), 2, node_configs=[{"keep": str(folder)} for folder in folders])
    done = over(grid, config)
    plan = RunPlan(config)
    drawn = plan.dataset.draw(2, config.seed)
    for cid, folder in enumerate(folders):
        place = folder / f"client-{cid}"
        model, tests = load_model(place / "model"), plan.site.federation.clients[cid]
        right = model.predict(drawn.x[tests.test_ids]) == tests.test.y.numpy()
        assert right.mean() == done.columns["L-acc"][cid] == model.artefact.info.performance.score
        assert model.artefact.info.performance.local == done.local["L-acc"][cid]
        own, federated = model.artefact.info.experts  # perhaps the own model is the better one for this site
        assert (own.name, own.weight, federated.name, federated.weight) == ("own", 0, "federated", 1)
        assert {path.stat().st_mode & 0o777 for path in (place, place / "model")} == {0o700}
        assert {file.stat().st_mode & 0o777 for file in place.glob("*.safetensors")} == {0o600}
    with pytest.raises(ComityError, match="newcomers are served on one machine; on Flower leave newcomers out"):
        over(grid, config.with_(newcomers=1))
    with pytest.raises(ComityError, match="save_models would have every site send its own model to the server"):
        over(grid, config.with_(save_models=True))


def test_what_a_client_keeps_never_leaves_it(tiny: dict[str, Any]) -> None:
    """The head of FedRep is nowhere in what goes over the grid."""
    config = Config(**(tiny | {"method": "FedRep", "rounds": 1}))
    carried: list[int] = []

    class Watched(InProcessGrid):
        def answer(self, message: Any) -> Any:
            reply = super().answer(message)
            for content in (message.content, reply.content):
                for record in content.array_records.values():
                    carried.extend(array.numpy().size for array in record.values())
            return reply

    grid = Watched(client_app(config), config.clients)
    done = over(grid, config)
    assert set(carried) == {done.server.layout.size}
    assert kept(grid, config, 0).method["personal"].numel() > 0


# Mods.


def test_flowers_mods_see_what_is_trained_and_nothing_else(tiny: dict[str, Any]) -> None:
    config = Config(**tiny, method="FedRep", rule="ConFREE")
    clip = LocalDpMod(clipping_norm=0.01, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    grid = InProcessGrid(client_app(config, mods=[clip]), config.clients)
    clipped = over(grid, config)
    start, plain = RunPlan(config).site.model().read("shared"), run(config).server.theta
    # ConFREE's update is at most (1 + c) times as long as the longest that it is given
    assert 0 < float((clipped.server.theta - start).norm()) <= 3 * 1.5 * 0.01 + 1e-6
    assert float((plain - start).norm()) > 0.1
    noisy = LocalDpMod(clipping_norm=0.01, sensitivity=0.02, epsilon=10.0, delta=1e-5)
    other = over(InProcessGrid(client_app(config, mods=[noisy]), config.clients), config)
    assert other.server.theta.dtype == torch.float32
    assert not torch.equal(other.server.theta, clipped.server.theta)
    assert not other.records[-1].failed


@pytest.mark.parametrize(("method", "what"), [("FedPAC", "prototypes, counts, head, H"), ("FEDORA", "basis")])
def test_mods_are_refused_where_they_would_not_see_all_that_leaves(
    tiny: dict[str, Any], method: str, what: str
) -> None:
    clip = LocalDpMod(clipping_norm=1.0, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    config = Config(**tiny, method=method)
    with pytest.raises(ComityError, match=f"{method} also sends {what}, which would leave without noise"):
        client_app(config, mods=[clip])
    grid = InProcessGrid(client_app(mods=[clip]), config.clients, run_config=entries_of(config))
    with pytest.raises(ComityError, match="clients are connected"):
        over(grid, config, patience=HASTY)


def test_noise_leaves_batchnorms_statistics_alone(tiny: dict[str, Any]) -> None:
    config = Config(**(tiny | {"model": "resnet4", "rounds": 1, "clients": 2}))
    noisy = LocalDpMod(clipping_norm=1e9, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    done = over(InProcessGrid(client_app(config, mods=[noisy]), 2), config)
    plain, size = run(config).server.theta, done.server.layout.size
    assert size < plain.numel()
    assert torch.equal(done.server.theta[size:], plain[size:])
    assert not torch.equal(done.server.theta[:size], plain[:size])
    assert not done.records[0].failed


# The app that is written.


@pytest.fixture
def written(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "My app 1"
    write_app(folder, Config(**tiny, method="S-FedPG"))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_the_written_app_runs_and_is_the_run(written: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    about = tomllib.loads((written / "pyproject.toml").read_text())
    components = about["tool"]["flwr"]["app"]["components"]
    server, client = (
        importlib.import_module(components[side].split(":")[0]).app for side in ("serverapp", "clientapp")
    )
    settings = flatten_dict(about["tool"]["flwr"]["app"]["config"]) | {"out": str(tmp_path / "out")}
    serve(server, InProcessGrid(client, 5, run_config=settings), settings)
    result = RunFolder(tmp_path / "out" / "flower-7").result()
    assert result.clients == run(**tiny, method="S-FedPG").columns


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_written_app_can_be_bundled(written: Path) -> None:
    bundle = build_fab_from_disk(written)
    assert len(bundle) < 20_000
    assert (written / "README.md").read_text().startswith("# S-FedPG on Flower")
    readme = (written / "README.md").read_text()
    assert "num-partitions=5" in readme
    assert "`masked = true`" in readme
    assert "masked = false" in (written / "pyproject.toml").read_text()


def test_comity_flower_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "app"
    options = ["--method", "FedRep", "--rule", "ConFREE", "--rule.c", "0.3", "--clients", "3", "--rounds", "2"]
    assert command("flower", ["new", str(folder), *options]) == 0
    assert "README.md says how to run it" in capsys.readouterr().out
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (
        config_of(flatten_dict(settings)).plain()
        == RunPlan(Config(method="FedRep", rule={"name": "ConFREE", "c": 0.3}, clients=3, rounds=2)).config.plain()
    )
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "README.md",
        "app/__init__.py",
        "app/client_app.py",
        "app/data.py",
        "app/server_app.py",
        "pyproject.toml",
    ]
    with pytest.raises(ComityError, match="exists and is not empty; give another folder"):
        command("flower", ["new", str(folder)])
    with pytest.raises(ComityError, match=r"unknown option '--metod'"):
        command("flower", ["new", str(tmp_path / "other"), "--metod", "FedAvg"])
    with pytest.raises(ComityError, match=r"^ACTION must be new \| keys, got 'old'$"):
        command("flower", ["old", "app"])
    for wrong in ([], ["new"], ["new", "--rounds", "3"]):
        with pytest.raises(ComityError, match="comity flower ACTION FOLDER"):
            command("flower", wrong)
    assert command("flower", ["new", "--help"]) == 0


def test_an_app_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def full(path: Path, text: str) -> None:
        if path.name == "data.py":
            raise OSError(28, "No space left on device")
        write_text(path, text)

    monkeypatch.setattr("comity.flower._app.write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_app(tmp_path / "app", Config())
    assert not (tmp_path / "app").exists()


def test_without_flower_nothing_else_changes_and_asking_for_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["flwr"] = None
import comity, comity.engine, comity.commands, comity.rules, comity.methods
assert not [name for name in sys.modules if name.startswith("flwr.")]
try:
    import comity.flower
except comity.ComityError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"flower is not installed: {install('flower')}\n"
