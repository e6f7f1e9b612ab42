"""What passes between a caller and a runner's process.

    caller → process    which device to make; then questions: the name of one of
                        :data:`.bench.QUESTIONS`, and its arguments
    process → caller    READY with the device's description, or LACKS with why there is none; then for each question
                        RESULT, RAISED, FULL with what found no memory, or one after which the process ends: FAULT
                        with the driver's code, SPOILED with the baseline and why

Callers read this, and need no torch.
"""

READY, LACKS, RESULT, RAISED, FULL, FAULT, SPOILED = "ready", "lacks", "result", "raised", "full", "fault", "spoiled"


class Spoiled(Exception):
    """A baseline's name, and what it did: its process can record and time nothing more."""
