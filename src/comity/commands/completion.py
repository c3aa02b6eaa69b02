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

    For this session: eval "$(comity completion bash)". For good, that line goes into ~/.bashrc, or with zsh into
    ~/.zshrc.

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
        for kind in (kind for kind in KINDS if kind in command.run_options):
            dotted = {option for description in described(kind).values() for option in description.options}
            words += [f"--{kind}.{option}" for option in sorted(dotted)]
        literals = (option.type for option in command.arguments if get_origin(option.type) is Literal)
        flags[name] = [*(str(word) for literal in literals for word in get_args(literal)), *words, "--help"]
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
