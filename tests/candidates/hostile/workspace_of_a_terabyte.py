# expect: invalid trace workspace-too-large 6
import torch


def launch(stream, x, y):
    torch.empty(2**40, dtype=torch.int8, device="cuda")
