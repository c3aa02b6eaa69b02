"""What is said about a folder of updates, in Python and in the terminal."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import SHAPES, models, save_all
from rich.console import Console
from test_adapters import federation

from comity import ComityError
from comity.commands import command
from comity.commands._inspection import show
from comity.files import Inspection, inspect
from comity.rules import CALM, ConFREE, Mean, Updates, conflict_rate, cosines, harm, improvement


def test_it_says_what_the_updates_say(tmp_path: Path) -> None:
    base, clients = models()
    found = inspect(*save_all("safetensors", base, clients, tmp_path / "in"))
    u = Updates([{name: client[name] - base[name] for name in SHAPES} for client in clients])
    assert found.ids == ("client-0", "client-1", "client-2", "client-3")
    assert set(found.layers) == set(SHAPES)
    assert sum(found.numbers) == u.layout.size
    assert found.conflict.overall == pytest.approx(conflict_rate(u).overall)
    torch.testing.assert_close(found.cosines, cosines(u))
    assert float(found.weight.sum()) == pytest.approx(1)
    torch.testing.assert_close(found.effects * u.gram.diagonal(), -harm(u, 1.0), rtol=1e-6, atol=1e-9)
    plain = Mean().apply(u).update.double().norm()
    for verdict, rule in zip(found.verdicts, (Mean(), ConFREE(), CALM()), strict=True):
        outcome = rule.apply(u)
        assert verdict.length == pytest.approx(float(outcome.update.double().norm() / plain), rel=1e-5)
        gains = improvement(u, outcome.coefficients) / verdict.length
        torch.testing.assert_close(verdict.shares, gains / u.gram.diagonal(), rtol=1e-5, atol=1e-8)
        assert verdict.worst == int((gains / u.gram.diagonal()).argmin())
        assert set(verdict.harmed) == {j for j in range(4) if gains[j] < 0}
    mean, confree, _ = found.verdicts
    assert mean.harmed
    assert float(mean.shares.min()) < 0
    assert not confree.harmed
    hurting = [(i, j) for i in range(4) for j in range(4) if found.cosines[i, j] < 0]
    assert [(i, j) for i, j, _ in found.hurts()] == sorted(hurting, key=lambda pair: found.effects[pair])


def test_the_terminal_at_80_columns_and_a_client_that_did_not_move(tmp_path: Path) -> None:
    base, clients = models()
    found = inspect(*save_all("safetensors", base, [*clients, base], tmp_path))
    assert math.isnan(found.mean.shares[4])
    assert 4 not in found.mean.harmed
    assert found.mean.worst != 4
    text = _shown(replace(found, source="base"))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "nan" not in text
    for told in (
        "The plain mean would harm",
        "ConFREE",
        "CALM",
        "head.weight",
        "Updates that would increase",
        "Cosines",
    ):
        assert told in text


def _shown(found: Inspection) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        show(found, console)
    return captured.get()


def test_many_clients_and_layers_in_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    names = [f"base_model.model.model.layers.{k}.self_attn.{n}_proj.lora_A.weight" for k in range(30) for n in "qkvo"]
    base = {name: torch.zeros(3) for name in names}
    clients = [{name: torch.randn(3, generator=generator) for name in names} for _ in range(25)]
    text = _shown(inspect(*save_all("safetensors", base, clients, Path("in"))))
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 50
    assert "and 112 more layers" in text
    assert "300 pairs" in text
    assert "layers.0." in text or ".self_attn.q_proj.lora_A.weight" in text


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, files = save_all("safetensors", *models(), tmp_path / "in")
    inputs = ["--base", str(start), *map(str, files)]
    assert command("inspect", inputs) == 0
    assert "The plain mean would harm" in capsys.readouterr().out
    new = tmp_path / "new.safetensors"
    assert command("aggregate", [*inputs, "--rule", "confree", "--rule.c", "0.4", "-o", str(new)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    for told in (str(new), "4 clients merged by ConFREE(c=0.4) in 5 layers", "in conflict", "times as long", "memory"):
        assert told in out
    assert not err
    chosen = ["--only=weight", "--exclude", "bn.*"]
    assert command("aggregate", [*inputs, "-o", str(new), "--overwrite", "--quiet", "--server-lr", "0.5", *chosen]) == 0
    assert capsys.readouterr().out == ""
    files[1].write_bytes(b"")
    assert command("aggregate", [*inputs, "-o", str(new), "--overwrite", "--skip-bad", "--memory", "3 GiB"]) == 0
    out, err = capsys.readouterr()
    assert "3 clients merged by ConFREE()" in out
    assert "1 file left out" in out
    assert err.startswith(f"comity: left out: {files[1]}: it is not a safetensors file")
    assert command("inspect", [*inputs, "--skip-bad"]) == 0
    capsys.readouterr()
    with pytest.raises(ComityError, match="exists"):
        command("aggregate", [*inputs, "-o", str(new), "--skip-bad"])
    assert "left out" in capsys.readouterr().err
    assert command("aggregate", ["--as-updates", *inputs[1:3], "-o", str(new), "--overwrite"]) == 0
    capsys.readouterr()
    with pytest.raises(ComityError, match="unknown option '--html'"):
        command("inspect", [*inputs, "--html", "page.html"])


def test_what_is_lost_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, files, *_ = federation(tmp_path / "in")
    arguments = ["--base", str(start), *map(str, files), "-o", str(tmp_path / "new")]
    arguments += ["--overwrite", "--lora", "products"]
    assert command("aggregate", arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(" % relative error in " in line for line in lines[:4])
    assert "relative error of the merged products at rank 4" in lines[4]
    assert "--rank auto" not in lines[4]
    assert command("aggregate", [*arguments, "--rank", "2"]) == 0
    assert "--rank auto is exact" in capsys.readouterr().out
