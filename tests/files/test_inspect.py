"""What is said about a folder of updates, in Python, in the terminal and on the page."""

import html
import math
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from checkpoints import SAVE, SHAPES, models, save_all
from rich.console import Console

from comity import ComityError
from comity.commands import command
from comity.files import Inspection, inspect
from comity.files._html import page
from comity.files._show import show
from comity.rules import CALM, ConFREE, Mean, Updates, conflict_rate, cosines, harm, improvement


@pytest.fixture
def found(tmp_path: Path) -> Inspection:
    start, files = save_all("safetensors", *models(), tmp_path / "in")
    return inspect(start, files, lr=0.1)


def test_it_says_what_the_updates_say(found: Inspection) -> None:
    base, clients = models()
    u = Updates([{name: client[name] - base[name] for name in SHAPES} for client in clients])
    assert found.ids == ("client-0", "client-1", "client-2", "client-3")
    assert set(found.layers) == set(SHAPES)
    assert sum(found.numbers) == u.layout.size
    assert found.conflict.overall == pytest.approx(conflict_rate(u).overall)
    torch.testing.assert_close(found.cosines, cosines(u))
    assert float(found.weight.sum()) == pytest.approx(1)
    changes = torch.tensor([[found.loss(j, float(found.effects[i, j])) for j in range(4)] for i in range(4)])
    torch.testing.assert_close(changes, harm(u, 0.1).float())
    plain = Mean().apply(u).update.double().norm()
    for verdict, rule in zip(found.verdicts, (Mean(), ConFREE(), CALM()), strict=True):
        outcome = rule.apply(u)
        assert verdict.length == pytest.approx(float(outcome.update.double().norm() / plain), rel=1e-5)
        gains = improvement(u, outcome.coefficients) / verdict.length
        torch.testing.assert_close(verdict.gains, gains, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(verdict.shares, gains / u.gram.diagonal(), rtol=1e-5, atol=1e-8)
        assert verdict.worst == int((gains / u.gram.diagonal()).argmin())
        assert set(verdict.harmed) == {j for j in range(4) if gains[j] < 0}


def test_the_mean_harms_who_pulls_the_other_way_and_confree_does_not(found: Inspection) -> None:
    mean, confree, _ = found.verdicts
    assert mean.harmed
    assert float(mean.shares.min()) < 0
    assert not confree.harmed
    assert [(i, j) for i, j, _ in found.hurts()] == sorted(
        [(i, j) for i in range(4) for j in range(4) if found.cosines[i, j] < 0], key=lambda p: found.effects[p]
    )


def test_a_client_that_did_not_move(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, [*clients, base], tmp_path / "in")
    found = inspect(start, files)
    assert math.isnan(found.mean.shares[4])
    assert 4 not in found.mean.harmed
    assert found.mean.worst != 4
    assert "nan" not in _shown(found)
    assert ">–<" in page(found)


def _shown(found: Inspection, width: int = 80) -> str:
    console = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        show(found, console)
    return captured.get()


def test_the_terminal_at_80_columns(found: Inspection) -> None:
    text = _shown(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for told in ("The plain mean would harm", "ConFREE", "CALM", "head.weight", "Who would hurt whom", "Cosines"):
        assert told in text


def test_many_clients_and_layers_in_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    names = [f"base_model.model.model.layers.{k}.self_attn.{n}_proj.lora_A.weight" for k in range(30) for n in "qkvo"]
    base = {name: torch.zeros(3) for name in names}
    clients = [{name: torch.randn(3, generator=generator) for name in names} for _ in range(25)]
    start, files = save_all("safetensors", base, clients, Path("in"))
    found = inspect(start, files)
    text = _shown(found)
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 50
    assert "and 112 more layers" in text
    assert "300 pairs" in text
    assert "layers.0." in text or ".self_attn.q_proj.lora_A.weight" in text


class Balanced(HTMLParser):
    """Whether every tag is closed, and what the text is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_takes_no_name_for_html(tmp_path: Path) -> None:
    base, clients = models()
    evil = "<script>alert(1)</script>"
    clients = [client | {f"{evil}.weight": torch.ones(2) * i} for i, client in enumerate(clients)]
    (tmp_path / "in").mkdir()
    start, files = save_all("safetensors", base | {f"{evil}.weight": torch.zeros(2)}, clients, tmp_path / "in")
    named = files[0].with_name('"><img src=x onerror=alert(1)>.safetensors')
    files[0].rename(named)
    text = page(inspect(start, [named, *files[1:]], lr=0.1))
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    assert not {"script", "img", "link", "iframe"} & parser.seen
    assert html.escape(f"{evil}.weight") in text
    assert "default-src 'none'" in text
    assert "http:" not in text.replace("http-equiv", "")
    assert "https:" not in text


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, files = save_all("safetensors", *models(), tmp_path / "in")
    inputs = [str(start), *map(str, files)]
    assert command("inspect", [*inputs, "--html", str(tmp_path / "page.html"), "--lr=0.1"]) == 0
    assert "Page: " in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
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
    assert command("aggregate", ["--as-updates", *inputs[:2], "-o", str(new), "--overwrite"]) == 0
    capsys.readouterr()
    for name in ("inspect", "aggregate"):
        assert command(name, ["--help"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 120
    for arguments, told in [
        ([*inputs[:2], "--html", "page.txt"], "ends in .html"),
        ([*inputs[:2], "--lr", "fast"], "--lr must be a number"),
        ([*inputs[:2], "--lr", "-1"], "--lr must be above 0, got -1.0"),
        ([], "takes a base and the clients' files"),
    ]:
        with pytest.raises(ComityError, match=told):
            command("inspect", arguments)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["clients/client-0", "clients/client-1", "clients/client-10"], True),
        (["aarau", "basel", "chur"], True),
        (["site-1/model", "site-2/model", "site-3/model"], True),
        (["base", "clients/client-0", "clients/client-1"], False),
        (["base", "aarau", "basel"], False),
        (["mine", "client-0", "client-1"], False),
        (["server/model", "site-1/model", "site-2/model"], False),
    ],
)
def test_a_base_that_looks_like_a_client(
    names: list[str], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    base, clients = models(2)
    for name, model in zip(names, [base, *clients], strict=True):
        Path(name).parent.mkdir(exist_ok=True)
        SAVE["safetensors"](model, Path(name))
    files = [f"{name}.safetensors" for name in names]
    assert command("inspect", files) == 0
    warned = (
        f"comity: {files[0]} was taken for the base that the clients started from, and looks like one of the clients"
    )
    offer = "; give the base with --base, or say --as-updates if these are updates\n"
    assert capsys.readouterr().err == (warned + offer) * told
    for said in (["--base", files[0], *files[1:]], ["--as-updates", *files]):
        assert command("inspect", said) == 0
        assert capsys.readouterr().err == ""


def test_what_a_forgotten_base_hides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seen from a client that pulls the other way, all others go the same way."""
    start, files = save_all("safetensors", *models(), tmp_path / "in")
    assert command("inspect", list(map(str, files))) == 0
    out, err = capsys.readouterr()
    assert "0 % of pairs and layers are in conflict.\nThe plain mean would harm none" in out
    assert "looks like one of the clients" in err
    assert command("inspect", [*map(str, files), "--base", str(start)]) == 0
    out, err = capsys.readouterr()
    assert "The plain mean would harm 1 of the 4 clients: client-0" in out
    assert not err
    with pytest.raises(ComityError, match="updates have no base"):
        command("inspect", [*map(str, files), "--base", str(start), "--as-updates"])
    with pytest.raises(ComityError, match="takes a base and the clients' files"):
        command("inspect", ["--base", str(start)])


def test_what_is_lost_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from test_adapters import federation

    start, files, *_ = federation(tmp_path / "in")
    assert command("aggregate", [str(start), *map(str, files), "--lora", "products", "-o", str(tmp_path / "new")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" % lost in ")[1] for line in lines[:4]]
    assert "of the merged products is lost at rank 4" in lines[4]
    assert "lose nothing" not in lines[4]
    arguments = [str(start), *map(str, files), "-o", str(tmp_path / "new"), "--overwrite", "--lora"]
    assert command("aggregate", [*arguments, "products", "--rank", "2"]) == 0
    assert "--rank auto, --lora stack and --lora residual lose nothing" in capsys.readouterr().out
    assert command("aggregate", [*arguments, "residual"]) == 0
    assert f"{tmp_path / 'new' / 'base_delta.safetensors'}: to be added to" in capsys.readouterr().out


def test_sketches_estimate_the_same_and_say_their_error(found: Inspection, tmp_path: Path) -> None:
    start, files = save_all("safetensors", *models(), tmp_path / "sketched")
    roomy, tight = (inspect(start, files, sketch=64, memory=memory) for memory in ("2GB", "32MB"))
    torch.testing.assert_close(roomy.cosines, tight.cosines)  # wherever the tensors are cut
    assert roomy.error == 1 / 8
    assert 0 < float((roomy.cosines - found.cosines).abs().max()) < 4 / 8
    long = inspect(start, files, sketch=6300)  # as long as the longest tensor
    torch.testing.assert_close(long.cosines, found.cosines)
    assert long.conflict.error == 0
    assert "cosines come from sketches, ± 0.125" in _shown(roomy, 200)
    assert "Cosines (each ± 0.125)" in _shown(roomy, 200)
    assert "sketches, ± 0.125" in page(roomy)
    assert "come from sketches" not in _shown(found)
    with pytest.raises(ComityError, match="sketch must be"):
        inspect(start, files, sketch=0)
