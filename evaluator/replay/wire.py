"""What passes between a caller and a runner's process.

    caller → process    which device to make; then questions: the name of one of
                        :data:`.bench.QUESTIONS`, and its arguments
    process → caller    READY with the device's description, or LACKS with why there is none; then for each question
                        RESULT, RAISED, or FAULT with the driver's code, after which the process ends

Callers read this, and need no torch.
"""

READY, LACKS, RESULT, RAISED, FAULT = "ready", "lacks", "result", "raised", "fault"
