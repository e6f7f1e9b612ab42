# expect: invalid import outside-launch 4
import torch

SCRATCH = torch.empty(1024, device="cuda")


def launch(stream, x, y):
    pass
