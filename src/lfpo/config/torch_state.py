"""Settings of torch that a user's module or function may leave changed, and that training cannot run with."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def torch_state_kept() -> Iterator[None]:
    """After the block gradients are on or off, and the default device is the one, as before it.

    Reward functions are written for evaluation: one that ends with gradients switched off, or with another default
    device, would change what is trained. Where the block itself loads torch, both are as torch begins with: gradients
    on, on the CPU. torch is not loaded here.
    """
    loaded = sys.modules.get("torch")
    grad, device = (loaded.is_grad_enabled(), str(loaded.get_default_device())) if loaded else (True, "cpu")
    try:
        yield
    finally:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_grad_enabled(grad)
            if str(torch.get_default_device()) != device:
                # None takes away the mode that makes tensors elsewhere, which costs time in every call.
                torch.set_default_device(None if device == "cpu" else device)
