"""Hypothesis as it runs here: how long an input takes to make says nothing on a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
