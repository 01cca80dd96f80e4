"""Verification: what `eqsat` computed against what it was given, kernel by kernel and end to end."""

from eqsat.verification.check import verify_models, verify_program
from eqsat.verification.feeds import load_feeds
from eqsat.verification.verification import Verification

__all__ = ["Verification", "load_feeds", "verify_models", "verify_program"]
