"""Input of secrets: from a hidden prompt, or from standard input; never as an argument.

An argument is in the shell's history, and everybody on the machine sees it in the list of processes.
"""

from __future__ import annotations

import sys

import click


def ask_secret(prompt: str, *, confirm: bool = False) -> str:
    """The first line of standard input; at a terminal a hidden prompt, asked twice if it is new."""
    if sys.stdin.isatty():
        answer: str = click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True)
        return answer
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise click.UsageError(f"{prompt} is expected on standard input, which was empty.")
    return line
