"""What this machine has and lacks for feedloop."""

from feedloop.machine.doctor import Finding, examine, report

__all__ = ["Finding", "examine", "report"]
