"""The tables of docs/explanation/harm.md, from what benchmarks/harm_test.py and harm_repetitions.py measured."""

from collections.abc import Iterable

from measured import Row, grid, read

from comity._words import number

FILE = "harm.csv"


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def rows(table: str, **where: object) -> list[Row]:
    found = [each for each in read(FILE) if each["table"] == table]
    return [each for each in found if all(each[name] == str(value) for name, value in where.items())]


def values(column: str, table: Iterable[Row]) -> list[float]:
    return [float(each[column]) for each in table]


def distinct(table: str, column: str) -> list[str]:
    return list(dict.fromkeys(each[column] for each in rows(table)))


def harm_level() -> str:
    """Share of federations with a wrongly named client, the larger one without and with training luck."""
    repetitions = sorted(distinct("level", "repetitions"), key=int)
    body = []
    for clients in distinct("level", "clients"):
        for tests in sorted(distinct("level", "tests"), key=int):
            found = [rows("level", clients=clients, tests=tests, repetitions=each) for each in repetitions]
            body.append([clients, tests, *(level(each) if len(each) == 2 else "–" for each in found)])
    return grid(["clients", "tests", *(f"{each} rep." for each in repetitions)], body, left=0)


def level(found: list[Row]) -> str:
    """The highest one, with its upper limit."""
    worst = max(found, key=lambda row: float(row["wrong"]))
    return f"{percent(float(worst['wrong']))} ({percent(float(worst['upper']))})"


def harm_federations(table: str, clients: int) -> str:
    """How many federations were simulated per setting."""
    found = sorted({int(each["federations"]) for each in rows(table, clients=clients)})
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"


def harm_variants() -> str:
    """Other scores, folds and kinds of luck: the worst over all numbers of tests and repetitions."""
    tables = [each for each in dict.fromkeys(each["table"] for each in read(FILE)) if each not in OWN_TABLES]
    body = []
    for table in tables:
        found = rows(table)
        low = [percent(min(values(column, found))) for column in ("coverage", "mean")]
        body.append([table, found[0]["clients"], level(found), *low, percent(max(values("too high", found)))])
    head = ["simulated", "clients", "level (limit)", "coverage", "coverage of the mean", "interval above the truth"]
    return grid(head, body)


def harm_power() -> str:
    """One client of 20 loses 10 points on 60 tests, by how much repetitions agree."""
    repetitions = distinct("power by agreement", "repetitions")
    body = []
    for agree in distinct("power by agreement", "agree"):
        found = [rows("power by agreement", agree=agree, repetitions=each)[0] for each in repetitions]
        body.append([f"{100 * float(agree):.0f}", *(percent(float(each["named"])) for each in found)])
    return grid(["agreement", *(f"{each} rep." for each in repetitions)], body, left=0)


def harm_power_by_tests(loss: float) -> str:
    """One client of 20 loses so much."""
    repetitions = distinct("power", "repetitions")
    body = []
    for tests in distinct("power", "tests"):
        found = [rows("power", loss=loss, tests=tests, repetitions=each)[0] for each in repetitions]
        body.append([tests, *(percent(float(each["named"])) for each in found)])
    return grid(["tests", *(f"{each} rep." for each in repetitions)], body, left=0)


def harm_repetitions() -> str:
    """Two studies read after 1 to 8 repetitions, as benchmarks/harm_repetitions.py prints them."""
    body = []
    for each in read("harm-repetitions.csv"):
        gain, low, high = (number(float(each[name]), 1) for name in ("gain", "gain low", "gain high"))
        loss = f"{each['client']}: {each['loss']} [{each['loss low']}, {each['loss high']}]"
        numbers = (each[name] for name in ("data", "repetitions", "runs"))
        states = (each[name] for name in ("worse", "undecided", "not worse"))
        body.append([*numbers, f"{gain} [{low}, {high}]", *states, loss])
    head = ["data", "repetitions", "runs", "mean gain", "worse", "undecided", "not worse", "largest loss"]
    return grid(head, body)


def harm_worst(column: str) -> str:
    """Of the settings of the first table: the largest level or upper limit, or the smallest coverage."""
    found = values(column, rows("level"))
    return percent(min(found) if column in ("coverage", "mean") else max(found))


def harm_excluded() -> str:
    """How often a client that loses exactly the margin is called not worse, at most."""
    tables = [each["table"] for each in read(FILE) if each["table"].startswith("true loss")]
    return percent(max(max(values("not worse", rows(each))) for each in tables))


OWN_TABLES = ("level", "power", "power by agreement")
