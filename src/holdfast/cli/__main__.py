"""`python -m holdfast.cli` is `holdfast`."""

from holdfast.cli.main import main

main()
