"""``comity completion``."""

from typing import Literal, get_args, get_origin

from comity._catalogue import KINDS, described
from comity.commands._command import Command

SCRIPT = """\
_comity() {{
  local words= before=${{COMP_WORDS[COMP_CWORD-1]}}
  case "$COMP_CWORD $before" in
    "1 "*) words="{commands}";;
{choices}
    *) case "${{COMP_WORDS[1]}}" in
{flags}
    esac;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _comity comity
"""


def completion(shell: Literal["bash", "zsh"]) -> int:
    """Print a script by which the shell completes commands, options and names.

    Its output belongs into ~/.bashrc or ~/.zshrc.

    Examples:
        comity completion bash
        comity completion zsh

    Options:
        shell: bash or zsh
    """
    from comity.commands import COMMANDS, find

    choices = {f"--{kind}": list(described(kind)) for kind in KINDS}
    flags = {}
    for name in COMMANDS:
        command = find(name)
        taken = [*command.run_options.values(), *command.options]
        words = [f"--{option.name.replace('_', '-')}" for option in taken]
        for flag, option in zip(words, taken, strict=True):
            if get_origin(option.type) is Literal:
                choices.setdefault(flag, list(map(str, get_args(option.type))))
        dotted = {
            f"--{kind}.{o}"
            for kind in KINDS
            if kind in command.run_options
            for d in described(kind).values()
            for o in d.options
        }
        arguments = [
            str(choice)
            for option in command.arguments
            if get_origin(option.type) is Literal
            for choice in get_args(option.type)
        ]
        flags[name] = [*arguments, *words, *sorted(dotted), "--help"]
    if shell == "zsh":
        print("autoload -U +X compinit bashcompinit && compinit && bashcompinit")
    print(
        SCRIPT.format(
            commands=" ".join((*COMMANDS, "--help", "--version")),
            choices="\n".join(f'    *" {flag}") words="{" ".join(words)}";;' for flag, words in choices.items()),
            flags="\n".join(f'      {name}) words="{" ".join(words)}";;' for name, words in flags.items()),
        ),
        end="",
    )
    return 0


COMMAND = Command(completion)
