"""The class of commands, and their common parser.

A command is a function. Parameters before the ``*`` in its signature are positional arguments, those after it are
options; a dataclass before the ``*`` contributes its fields, which several commands may share. Types, ranges, defaults
and help are declared as everywhere in comity (``comity._options``); examples are in the docstring under ``Examples:``.
A command that takes options of a run gets the given ones as ``given``.
"""

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from comity._catalogue import Description, option_for
from comity._errors import ComityError, unknown
from comity._hints import name_hint
from comity._options import REQUIRED, Option, Range, convert, options
from comity._overlay import advice, components, owner
from comity._yaml import FORMER
from comity.config import COMPONENTS, Config, Entries, Overlay, read_yaml, unknown_option

Repeated = Annotated[tuple[str, ...], "repeated"]
"""An option that may be repeated."""

RUN_OPTIONS = tuple(options(Config).values())
"""All options of a run."""

_SHORT = {"output": "-o"}
_COMPONENT_OPTION = re.compile(rf"--({'|'.join(COMPONENTS)})\.[^=]+")


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A file of options, for commands that take options of a run.

    Options:
        config: a YAML file with any of these options, such as a run's config.yaml; the command line overrides it
        allow_code: allow the file to name your own classes; their code will be executed
    """

    config: Path | None = None
    allow_code: bool = False

    def entries(self, given: Entries) -> Overlay:
        """The file's options, overridden by the ``given`` ones."""
        return Overlay(read_yaml(self.config, allow_code=self.allow_code), given)


class Command:
    """A function that is called by name on the command line."""

    def __init__(
        self,
        function: Callable[..., int],
        run_options: Iterable[Option] = (),
        *,
        order: int,
        uses: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """``run_options``: the options of a run that it takes; ``order``: its position among the commands.

        ``uses``: for a value of the first argument, the options of a run that its help page shows.
        """
        self.function, self.order, self.uses = function, order, uses or {}
        self.name = function.__name__.strip("_")
        self.run_options = {option.name: option for option in run_options}
        self.arguments: list[Option] = []
        self.options: list[Option] = []
        parameters = inspect.signature(function).parameters
        declared = options(function, ("given",))
        self._shared: dict[str, Any] = {name: each.type for name, each in declared.items() if is_dataclass(each.type)}
        for name, option in declared.items():
            if name not in self._shared:
                by_name = parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
                (self.options if by_name else self.arguments).append(option)
        for shared in self._shared.values():
            for f in fields(shared):
                (self.options if f.kw_only else self.arguments).append(options(shared)[f.name])
        doc, _, sections = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
        self.description = [" ".join(paragraph.split()) for paragraph in doc.split("\n\n")]
        self.examples = [line.strip() for line in sections.partition("\n\n")[0].splitlines()]

    @property
    def usage(self) -> str:
        shown = (
            _placeholder(each) if each.default is REQUIRED else f"[{_placeholder(each)}]" for each in self.arguments
        )
        return " ".join(["comity", self.name, *shown, "[options]"])

    def __call__(self, arguments: Sequence[str]) -> int:
        values = self.parse(arguments)
        given = {name: values.pop(name) for name in list(values) if name in self.run_options or "." in name}
        if values.pop("help", False):
            action = values.get(self.arguments[0].name) if self.uses else None
            shown = self.uses.get(action) if isinstance(action, str) else None
            print(self.help(given, values.get("config"), bool(values.get("allow_code")), shown), end="")
            return 0
        for option in (*self.arguments, *self.options):
            shown = option.name.upper() if option in self.arguments else _flags(option)[0]
            if option.name in values:
                values[option.name] = convert(values[option.name], option.type, shown)
            elif option.default is REQUIRED:
                raise ComityError(f"{shown} is missing: {self.usage}; see comity {self.name} --help")
        for name, shared in self._shared.items():
            values[name] = shared(**{f.name: values.pop(f.name) for f in fields(shared) if f.name in values})
        return self.function(**values, **({"given": given} if self.run_options else {}))

    def parse(self, arguments: Sequence[str]) -> Entries:
        """The text given for each argument and option, by name; flags are ``True``."""
        spelt = [_spelt(argument) for argument in arguments]
        parser = self._parser()
        for flag in dict.fromkeys(match[0] for match in map(_COMPONENT_OPTION.match, spelt) if match):
            name = flag[2:].replace("-", "_")
            if name.partition(".")[0] in self.run_options:
                parser.add_argument(flag, dest=name, default=argparse.SUPPRESS)
        try:
            values, unused = parser.parse_known_intermixed_args(spelt)
        except argparse.ArgumentError as error:
            if glued := [argument for argument in spelt if re.match("-h.", argument)]:  # PFLlib's -hd is not -h
                raise self._unknown(glued[0], {}) from None
            raise _in_our_words(error, spelt) from None
        if unused:
            raise self._unknown(unused[0], vars(values))
        return {name: value for name, value in vars(values).items() if value != []}

    def _unknown(self, argument: str, given: Entries) -> ComityError:
        if not argument.startswith("-"):
            if self.run_options and (hint := name_hint("method", argument)):
                return ComityError(hint)
            if self.run_options and (hint := option_for(argument)):
                return ComityError(f"unexpected argument {argument!r}; {hint}")
            return ComityError(f"unexpected argument {argument!r}; options start with --: {self.usage}")
        name = argument.partition("=")[0]
        whole, dot, _ = name.partition(".")
        flags = [flag for option in (*self.run_options.values(), *self.options) for flag in _flags(option)]
        if "track" in self.run_options and name[2:] in FORMER:
            return unknown_option(name[2:])
        if name == "--data" and [each.name for each in self.arguments] == ["table"]:
            return ComityError(f"give the data set as {_placeholder(self.arguments[0])}, without --data: {self.usage}")
        if dot and whole in flags:
            return ComityError(f"{whole} has no options of its own, got {name}")
        chosen = {"data": given["table"], **given} if "table" in given else given
        if self.run_options and (hint := advice(name, flags, chosen)):
            return ComityError(f"unknown option {name!r}; {hint}")
        inner = {} if dot else self._component_flags(given)
        return unknown("option", name, [*flags, "--help"], short=inner)

    def _component_flags(self, given: Entries) -> dict[str, str]:
        """Options of the chosen components by their short names: ``--partition.alpha`` by ``--alpha``."""
        kinds = [kind for kind in COMPONENTS if kind in self.run_options]
        return {
            f"--{option}": f"--{kind}.{option}" for kind, each in components(given, kinds) for option in each.options
        }

    def help(
        self,
        given: Entries | None = None,
        config: str | None = None,
        allow_code: bool = False,
        shown: Collection[str] | None = None,
    ) -> str:
        """The help page, with all options of a run or those ``shown``; only their options if components were chosen."""
        entries = ConfigFile(config=Path(config) if config else None, allow_code=allow_code).entries(given or {})
        kinds = [kind for kind in COMPONENTS if kind in self.run_options]
        chosen = [kind for kind in kinds if kind in map(owner, entries)]
        if chosen:
            page = _page(self.usage, "", f"comity {self.name} --help shows all other options")
            _add_components(page, components(entries, chosen))
            return page.format_help()
        kinds_shown = [kind for kind in kinds if kind != "guard"]  # a run has none by default
        defaults = components({"rule": self.run_options["rule"].default} if "rule" in kinds else {}, kinds_shown)
        listed = [(kind, each) for kind, each in defaults if each.options and (shown is None or kind in shown)]
        return self._parser(listed, shown).format_help()

    def _parser(
        self, components: Iterable[tuple[str, Description]] = (), shown: Collection[str] | None = None
    ) -> argparse.ArgumentParser:
        """The parser; a help page also lists the options of ``components``, and of a run only ``shown``."""
        run_options = [each for name, each in self.run_options.items() if shown is None or name in shown]
        examples = "\n".join(["examples:", *(f"  {example}" for example in self.examples)])
        parser = _page(self.usage, "\n\n".join(self.description), examples)
        parser._negative_number_matcher = re.compile(r"^-(\d|\.\d|inf|nan)")  # argparse's own does not accept -1e-3
        group = parser.add_argument_group("arguments")
        for option in self.arguments:
            nargs = "*" if get_origin(option.type) is tuple else "?"
            about: dict[str, Any] = {"metavar": _placeholder(option), "help": _explained(option)}
            group.add_argument(option.name, nargs=nargs, default=argparse.SUPPRESS, **about)
        for title, several in groupby(run_options, lambda option: option.section):
            group = parser.add_argument_group(title)
            for option in several:
                _add(group, option, _flags(option), argparse.BooleanOptionalAction)
        _add_components(parser, components)
        group = parser.add_argument_group("other options" if self.run_options else "options")
        for option in self.options:
            _add(group, option, _flags(option), "store_true")
        group.add_argument("-h", "--help", action="store_true", help="show this help", default=argparse.SUPPRESS)
        return parser


def _page(usage: str, description: str, epilog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=_Formatter,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )


def page_width() -> int:
    """Width of a page of text: that of the terminal, up to a readable limit."""
    return min(shutil.get_terminal_size((110, 24)).columns, 120)


class _Formatter(argparse.HelpFormatter):
    """Fills paragraphs and keeps indented lines."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38, width=page_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (
            line
            if line.startswith("  ")
            else textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
            for line in text.splitlines()
        )
        return "\n".join(lines)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # --dp-clip is not split


def _spelt(argument: str) -> str:
    """Replace underscores in an option's name by hyphens."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


def _in_our_words(error: argparse.ArgumentError, arguments: Sequence[str]) -> ComityError:
    flags = (error.argument_name or "").split("/")
    typed = next((argument for argument in arguments if argument.partition("=")[0] in flags), flags[-1])
    flag, equals, value = typed.partition("=")
    return ComityError(f"{flag} takes no value, got {value!r}" if equals else f"{flag} needs a value")


def _flags(option: Option) -> list[str]:
    short = [_SHORT[option.name]] if option.name in _SHORT else []
    return [*short, f"--{option.name.replace('_', '-')}"]


def _placeholder(argument: Option) -> str:
    """An argument in a usage line: itself if there is one choice, otherwise its name in capitals."""
    if get_origin(argument.type) is Literal and len(get_args(argument.type)) == 1:
        return str(get_args(argument.type)[0])
    return argument.name.upper() + ("…" if get_origin(argument.type) is tuple else "")


def _metavar(to: Any, without_none: bool = False) -> str:
    """The placeholder of an option's value on a help page; ``none`` is left out if it is the default."""
    origin, arguments = get_origin(to), get_args(to)
    if to is Repeated:
        return "TEXT"
    if origin is Annotated:
        return _metavar(arguments[0])
    if origin in (Union, UnionType):
        return "|".join(_metavar(choice) for choice in arguments if not (without_none and choice is NoneType))
    if origin is Literal:
        return "|".join(map(str, arguments))
    if origin is tuple:
        return f"{_metavar(arguments[0])},…"
    return {int: "N", float: "NUMBER", bool: "true|false", str: "TEXT", Path: "PATH", NoneType: "none"}.get(to, "NAME")


def _add(group: Any, option: Option, flags: Sequence[str], when_bool: Any = None) -> None:
    """Add an option to an argparse group; ``when_bool`` is the action for a boolean flag."""
    about: dict[str, Any] = {"help": _explained(option), "default": argparse.SUPPRESS}
    if option.type in (bool, bool | None) and when_bool is not None:
        group.add_argument(*flags, action=when_bool, **about | {"help": option.help})
    else:
        action = "append" if option.type is Repeated else "store"
        group.add_argument(*flags, action=action, metavar=_metavar(option.type, option.default is None), **about)


def _add_components(parser: argparse.ArgumentParser, components: Iterable[tuple[str, Description]]) -> None:
    for kind, description in components:
        paper = f" {description.paper}." if description.paper and description.paper not in description.about else ""
        group = parser.add_argument_group(f"{kind} {description.name}", description.about + paper)
        for option in description.options.values():
            _add(group, option, [f"--{kind}.{option.name}"])


def _explained(option: Option) -> str:
    """Help, range and default of an option."""
    ranges, default = " or ".join(dict.fromkeys(_ranges(option.type))), option.default
    if isinstance(default, (tuple, bool)):
        default = ",".join(map(str, default)) if isinstance(default, tuple) else str(default).lower()
    shown = default is not REQUIRED and default not in (None, "")
    words = (option.help, f"({ranges})" if ranges else "", f"[{default}]" if shown else "")
    return " ".join(filter(None, words)).replace("%", "%%")


def _ranges(to: Any) -> Iterator[str]:
    for part in get_args(to) if get_origin(to) is not Literal else ():
        yield from [str(part)] if isinstance(part, Range) else _ranges(part)
