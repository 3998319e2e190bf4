"""`python -m asyncgrpo`."""

from asyncgrpo.cli import main

if __name__ == "__main__":
    main()
