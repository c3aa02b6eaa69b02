"""That nothing has become slow: ratios inside one run, with room for a busy machine. ``make bench`` runs this."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import answers
import files
import rules
import step
from comity import Config, run
from comity.files import aggregate
from comity.nn import MODELS, Model, gradients_of
from growth import apart, grown
from round import Here, compare, federation, seconds


@pytest.mark.parametrize(
    ("model", "method", "shape", "eager", "floor"),
    [
        ("cnn", "FedAvg", (3, 32, 32), 1.5, 0.4),
        ("cnn", "FedRep", (3, 32, 32), 1.5, 0.4),
        ("lenet5", "FedAvg", (3, 32, 32), 3.0, 0.3),
        ("mlp", "FedAvg", (1, 28, 28), 3.0, 0.2),
        ("mlp", "FedRep", (1, 28, 28), 4.0, 0.2),
        ("mlp", "FedAvg", (1, 8, 8), 3.0, 0.1),
    ],
)
def test_a_round_is_faster_than_the_eager_loop(
    model: str, method: str, shape: tuple[int, int, int], eager: float, floor: float
) -> None:
    taken = compare(model, method, repeats=3, shape=shape)
    best = {name: min(spread.values) for name, spread in taken.items()}
    assert best["eager"] / best["here"] > eager
    assert best["floor"] / best["training"] > floor


def processor(work: Callable[[], object]) -> float:
    """Seconds of all threads: other work on the machine does not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def step_time(
    make: Callable[..., Callable[[], object]], model: str, shape: tuple[int, int, int], threads: int
) -> float:
    torch.set_num_threads(1)
    return min(step.milliseconds(partial(make, model, shape), threads) for _ in range(5))


@pytest.mark.parametrize(("model", "shape"), [("lenet5", (3, 32, 32)), ("mlp", (1, 28, 28))])
def test_compiled_steps_are_faster_than_torchs(model: str, shape: tuple[int, int, int]) -> None:
    assert step_time(step.written_out, model, shape, 1) > 1.5 * step_time(step.compiled, model, shape, 1)


def test_compiled_steps_do_not_wait_for_each_other() -> None:
    """Two threads do at least four fifths of what they do for a product, beside whatever the machine has to do."""

    def products() -> Callable[[], object]:
        A = torch.randn(256, 256)
        return lambda: [A @ A for _ in range(step.STEPS)]

    torch.set_num_threads(1)
    makes = (partial(step.compiled, "lenet5", (3, 32, 32)), products)
    turns = [[step.milliseconds(make, threads) for make in makes for threads in (1, 2)] for _ in range(10)]
    one, two, product_one, product_two = map(min, zip(*turns, strict=True))
    assert one / two > 0.8 * product_one / product_two


def test_the_cost_of_a_step_does_not_grow_with_the_clients() -> None:
    few, many = (grown(clients, "mlp", "memory", samples=50) for clients in (50, 500))
    assert many["processor"] < 1.4 * few["processor"]
    assert many["memory"] - few["memory"] < 1.3 * 450 * many["row"]


def test_rules_with_sketches_take_little_longer_than_mean_and_no_longer_over_the_rounds() -> None:
    """The goal is 1.5 times Mean's processor time with 10,000 clients; this allows for a busy machine."""
    taken = {rule: apart("ruled", rule, 2000, 4) for rule in ("Mean", "ConFREE+1024", "CALM+1024")}
    least = {rule: min(spent for spent, *_ in rounds) for rule, rounds in taken.items()}
    for rule, rounds in taken.items():
        assert least[rule] < 2 * least["Mean"], rule
        (first, _, held), (last, _, held_last) = rounds[0], rounds[-1]
        assert last < 1.5 * first, rule
        assert held_last < 1.1 * held, rule


def test_on_disk_memory_does_not_grow_with_the_clients() -> None:
    few, many = (grown(clients, "cnn", "disk", samples=10, rounds=0) for clients in (200, 700))
    assert many["memory"] - few["memory"] < 0.3 * 500 * many["row"]


def test_gradients_of_a_chain_are_faster_than_autograds() -> None:
    """As methods with a loop of their own find them, APFL above all."""
    torch.set_num_threads(1)
    model = Model(MODELS["mlp"]((41,), 6, (32,)))
    x, y, taken = torch.randn(10, 41), torch.arange(10) % 6, list[float]()
    for find in (model.gradients(), gradients_of(model.loss, model.parameters())):
        taken.append(min(seconds(lambda: [find(x, y) for _ in range(200)]) for _ in range(5)))  # noqa: B023
    assert taken[1] > 1.5 * taken[0]


@pytest.mark.parametrize(
    ("model", "method", "most"),
    [("cnn", "FedAvg", 0.35), ("cnn", "FedRep", 0.35), ("mlp", "FedAvg", 0.5), ("mlp", "FedRep", 0.5)],
)
def test_evaluation_is_a_small_part_of_a_round(model: str, method: str, most: float) -> None:
    torch.set_num_threads(1)
    here = Here(federation(50, 100, tests=43), model, method)
    here.round()

    def evaluate() -> None:
        """As between rounds; the last round's also predicts the training samples, for balanced accuracy."""
        here.server.evaluate(general=False, by_class=False)

    training, looking = (min(processor(work) for _ in range(3)) for work in (here.round, evaluate))
    assert looking < most * training


@pytest.mark.parametrize("method", ["FedAvg", "FedRep"])
def test_evaluation_is_a_tenth_of_a_run_by_default(method: str) -> None:
    seconds = [record.seconds for record in run(data="digits", model="mlp", method=method, reference="none").records]
    looking = sum(each.evaluate for each in seconds)
    assert looking < 0.15 * sum(each.train + each.aggregate + each.evaluate for each in seconds)


@pytest.mark.parametrize("rule", ["FedFV()", "FairDescent()"])
def test_a_rule_that_remembers_copies_nothing(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(rules, "RULES", {rule: rules.RULES[rule]})
    with rules.matrix(20, 10**6, memory=1.0) as (U, _):
        measured = {name: min(processor) for name, (_, processor, _) in rules.measure(U, repeats=5).items()}
    assert measured[rule] < 1.3 * (measured["Gram product"] + measured["combination"])


def test_files_are_merged_in_a_few_times_what_reading_takes(tmp_path: Path) -> None:
    """In processor time, with the files in the page cache."""
    torch.set_num_threads(2)
    layers = files.shapes(40_000_000)
    noise = torch.randn(20_000_000, generator=torch.Generator().manual_seed(0))
    for client in (None, *range(12)):
        files.make(tmp_path / ("base" if client is None else f"client-{client:02d}"), layers, client, noise)
    clients = sorted(tmp_path.glob("client-*"))
    ways = {
        "merge": lambda: aggregate(tmp_path / "base", clients, tmp_path / "new", "ConFREE", overwrite=True),
        "read": lambda: files.read_twice(tmp_path),
    }
    turns = [[processor(way) for way in ways.values()] for _ in range(4)]
    taken = dict(zip(ways, zip(*turns, strict=True), strict=True))
    assert min(taken["merge"]) < 18 * min(taken["read"]), taken


def test_the_command_line_is_there_at_once() -> None:
    """In processor time: by the clock 0.1 s on a quiet machine, and 0.7 s at a load of 11."""
    _, used = answers.taken(["--help"])
    assert used < 0.5


@pytest.mark.parametrize("command", answers.FIRST_LINES, ids=lambda command: command[0])
def test_the_first_line_comes_before_torch_is_imported(command: list[str]) -> None:
    """In processor time, of which the import of torch alone takes more than a second."""
    _, used = answers.taken(command, first_line=True)
    assert used < 1.0


@pytest.mark.parametrize(("command", "goal"), [("ask", 10), ("join", 60)])
def test_the_answer_about_four_hospitals_comes_soon(command: str, goal: float) -> None:
    """The goals are seconds by the clock on two cores; this is processor time of all processes, for busy machines."""
    _, used = answers.taken([command, answers.TABLE])
    assert used < goal


@pytest.mark.skipif(sys.platform != "linux", reason="comity supernode needs Linux")
def test_a_supernode_answers_without_importing_everything_again() -> None:
    """0.7 s of processor time per message were measured, and 5.2 s for Flower's own SuperNode."""
    pytest.importorskip("flwr")
    from flower_processes import COMMANDS, measured

    config = Config(data="digits", model="mlp", clients=2, rounds=4, eval_every=4, reference="none")
    _, spent, _ = measured(config, COMMANDS["comity supernode"], 2)
    assert spent < 2.5
