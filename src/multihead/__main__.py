"""`python -m multihead` is the `multihead` command."""

from .cli import main

if __name__ == "__main__":
    main()
