"""`python -m gevit`, for launchers that start modules, like torchrun."""

from gevit.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
