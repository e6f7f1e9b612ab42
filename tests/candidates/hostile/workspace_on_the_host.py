# expect: invalid trace wrong-device 6
import torch


def launch(stream, x, y):
    torch.empty(x.shape, device="cpu")
