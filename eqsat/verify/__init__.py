"""Verification: what `eqsat` computed against what it was given, kernel by kernel and end to end."""

from eqsat.verify.check import verify_models, verify_program
from eqsat.verify.feeds import load_feeds
from eqsat.verify.verification import Verification

__all__ = ["Verification", "load_feeds", "verify_models", "verify_program"]
