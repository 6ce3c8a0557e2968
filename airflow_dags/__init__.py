"""Schedules for Airflow 3: they call the command line and import no room."""
