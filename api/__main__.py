"""`python -m iosched` is the command line."""

from iosched.cli.main import main

main()
