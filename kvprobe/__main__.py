"""`python -m kvprobe`."""

from kvprobe.cli.main import entry

if __name__ == "__main__":
    entry()
