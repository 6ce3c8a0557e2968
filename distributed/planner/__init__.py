"""The planner: which parallel layout, how much memory, how many bytes, how fast, before an accelerator is rented.

A calculator over descriptions: it starts no process and needs no accelerator. Nothing is imported here: the platform uses
the schedules alone, and needs none of what reads and checks descriptions.
"""
