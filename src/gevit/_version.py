"""The one place for the version: packaging, command line and reports read it here."""

__version__ = "0.1.0"
