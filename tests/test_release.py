"""What a release needs agrees with itself: version, changelog, citation, workflows, image, notebook, templates."""

import json
import re
import tomllib
from pathlib import Path

import yaml

import comity
from comity._catalogue import described
from comity.commands import find

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_changelog_keeps_its_form() -> None:
    unreleased, newest, *_ = re.findall(r"^## (.+)$", text("CHANGELOG.md"), flags=re.MULTILINE)
    assert unreleased == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(comity.__version__)}\] - 20\d\d-\d\d-\d\d", newest)
    headings = re.findall(r"^### (.+)$", text("CHANGELOG.md"), flags=re.MULTILINE)
    assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    source = tomllib.loads(text("pyproject.toml"))["project"]["urls"]["Source"]
    assert f"[{comity.__version__}]: {source}/releases/tag/v{comity.__version__}\n" in text("CHANGELOG.md")


def test_the_changelog_names_every_method_and_rule() -> None:
    words = set(re.findall(r"[\w+-]+", text("CHANGELOG.md")))
    for kind in ("method", "rule"):
        assert {name.removesuffix("-released") for name in described(kind)} <= words


def test_the_release_workflow_publishes_without_a_token_and_finds_its_heading() -> None:
    release = yaml.safe_load((WORKFLOWS / "release.yml").read_text())
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (WORKFLOWS / "release.yml").read_text()
    (checks,) = [step["run"] for step in release["jobs"]["dist"]["steps"] if "CHANGELOG.md" in step.get("run", "")]
    (heading,) = re.findall(r'grep -qF "(.+)" CHANGELOG.md', checks)
    assert heading.replace("${GITHUB_REF_NAME#v}", comity.__version__) in text("CHANGELOG.md")


def test_the_citation_names_the_repository() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    assert f"[{citation['version']}] - {citation['date-released']}" in text("CHANGELOG.md")
    assert citation["version"] == comity.__version__
    assert citation["repository-code"] == tomllib.loads(text("pyproject.toml"))["project"]["urls"]["Source"]


def test_the_matrix_has_every_python_that_the_package_names() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "tests.yml").read_text())["jobs"]
    matrix = jobs["without-extras"]["strategy"]["matrix"]
    named = re.findall(r"Python :: (3\.\d+)", text("pyproject.toml"))
    assert matrix["python"] == named
    assert matrix["system"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert set(jobs["tests"]["strategy"]["matrix"]["python"]) <= set(named)
    assert {"systems", "lower-bounds"} <= jobs.keys()


def test_the_workflow_runs_slow_tests_and_the_image_as_the_page_says() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "tests.yml").read_text())["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands["slow"] == ["make test-slow"]
    page = [line for line in text("docs/how-to/install.md").splitlines() if line.startswith("docker ")]
    assert [line for line in commands["image"] if line.startswith("docker ")] == page
    shown = {line.partition(" #")[0].rstrip() for line in text("docs/how-to/install.md").splitlines()}
    typed = ("python -m venv", "uv venv", "uv run", "uv tool", "comity run")
    installs = [line for line in commands["install"] if line.startswith(typed)]
    assert len(installs) == len(typed)
    assert set(installs) <= shown


def test_every_target_of_a_workflow_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", text("Makefile"), flags=re.MULTILINE))
    for path in WORKFLOWS.glob("*.yml"):
        for line in re.findall(r"^ *(?:- run: )?make ([\w -]+)$", path.read_text(), flags=re.MULTILINE):
            assert set(line.split()) <= targets, line


def test_what_is_built_is_checked_with_twine() -> None:
    rule = text("Makefile").partition("\nwheel:")[2].partition("\n\n")[0]
    assert "twine check --strict dist/*" in rule
    constraints = text("constraints.txt").splitlines()
    assert any(line.startswith("twine==") for line in constraints)


def test_the_image_copies_what_exists_and_runs_the_demo_of_make() -> None:
    lines = text("Dockerfile").splitlines()
    allowed = [line.removeprefix("!") for line in text(".dockerignore").splitlines() if line.startswith("!")]
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert copied
    assert all((ROOT / name).exists() and name in allowed for name in copied)
    (command,) = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    demo = [line.split("comity ")[1] for line in text("Makefile").splitlines() if line.startswith("\t$(BIN)/comity ")]
    assert command[-1] == " && ".join(f"comity {line}" for line in demo)
    for line in demo:
        name, *arguments = line.split()
        find(name).parse(arguments)


def test_the_notebook_installs_only_where_comity_is_missing_and_has_no_badge_that_leads_nowhere() -> None:
    cells = json.loads(text("examples/comity.ipynb"))["cells"]
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    condition, _, rest = first.partition('if importlib.util.find_spec("comity") is None:\n')
    assert rest
    assert "%pip" not in condition
    assert all(line.startswith("    ") for line in rest.splitlines())
    assert "colab-badge" not in text("examples/comity.ipynb") + text("README.md")


def test_the_templates_ask_for_the_version() -> None:
    for name in ("ISSUE_TEMPLATE/bug.md", "ISSUE_TEMPLATE/idea.md", "pull_request_template.md"):
        assert "comity --version" in text(f".github/{name}")
