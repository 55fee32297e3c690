"""A GPU that is only pretended: tensors are computed on the CPU but remember on which device they would be, and mixing devices is an error.

It finds what a run on a real GPU would stumble over at once: a tensor left on the CPU, a generator of the wrong device, NumPy handed a
tensor on the GPU. It says nothing about speed, memory or arithmetic there.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cuda", 0)
_DEVICE, _IS_CUDA, _DATA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__, torch.Tensor.data.__set__
_LEAVE = ("numpy", "__array__")  # of a tensor on the GPU: errors
_ACROSS = ("copy_", "__setitem__", "__set__", "__get__", "_has_compatible_shallow_copy_type")  # may have tensors on both sides
_MOVES = ("to", "cpu", "cuda")


class Generator(torch.Generator):
    """Random numbers of a device."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls, "cpu")
        made.pretended = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self.pretended


def on_gpu(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "_pretended", False)


class PretendedGpu(TorchFunctionMode):
    """While it is entered, device "cuda" can be used. RuntimeError where an operation has operands on both sides."""

    def __enter__(self):
        self._real = torch.Generator, torch.nn.Parameter.__new__  # neither is a function that a mode sees
        torch.Generator, torch.nn.Parameter.__new__ = Generator, self._parameter
        return super().__enter__()

    def __exit__(self, *failure) -> None:
        super().__exit__(*failure)
        torch.Generator, torch.nn.Parameter.__new__ = self._real

    def _parameter(self, kind, data=None, requires_grad=True):
        made = self._real[1](kind, data, requires_grad)
        made._pretended = data is not None and on_gpu(data)
        return made

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if func in (_DEVICE, _IS_CUDA):
            device = GPU if on_gpu(args[0]) else func(*args)
            return device if func == _DEVICE else on_gpu(args[0])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if name in _MOVES and tensors:
            return self._move(name, args, kwargs)
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = "cpu"
        placed = any(map(on_gpu, tensors)) if device is None else torch.device(device).type == "cuda"
        self._check(func, name, args, tensors, kwargs, placed)
        out = func(*args, **kwargs)
        if func == _DATA:
            args[0]._pretended = on_gpu(args[1])
        elif placed and name not in ("tolist", "item"):
            self._place(out)
        return out

    def _check(self, func, name: str, args: tuple, tensors: list, kwargs: dict, placed: bool) -> None:
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != ("cuda" if placed else "cpu"):
            raise RuntimeError(f"{func}: a generator of {generator.device} for numbers elsewhere")
        if name in _LEAVE and on_gpu(args[0]):
            raise TypeError("can't convert a tensor on the GPU to numpy: use .cpu() first")
        if name in _ACROSS or any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors):
            return
        if name == "__getitem__" and on_gpu(args[0]):
            return  # an index may stay on the CPU
        elsewhere = [tensor for tensor in tensors if not on_gpu(tensor) and tensor.dim() > 0]
        if elsewhere and any(map(on_gpu, tensors)):
            raise RuntimeError(f"{func}: some operands are on the GPU, one of shape {tuple(elsewhere[0].shape)} is on the CPU")

    def _move(self, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        tensor, *rest = args
        target = {"cpu": torch.device("cpu"), "cuda": GPU}.get(name)
        types = []
        for value in (*rest, kwargs.get("device"), kwargs.get("other")):
            if isinstance(value, torch.Tensor):
                target = GPU if on_gpu(value) else torch.device("cpu")
                types.append(value.dtype)
            elif isinstance(value, (str, torch.device)):
                target = torch.device(value)
            elif isinstance(value, torch.dtype):
                types.append(value)
        placed = on_gpu(tensor) if target is None else target.type == "cuda"
        kept = {key: value for key, value in kwargs.items() if key in ("dtype", "copy", "memory_format")}
        out = torch.Tensor.to(tensor, *types, **kept)
        if out is tensor and placed != on_gpu(tensor):
            out = tensor.clone() if tensor.requires_grad else tensor.detach().clone()
        out._pretended = placed
        return out

    def _place(self, out) -> None:
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                leaf._pretended = True
