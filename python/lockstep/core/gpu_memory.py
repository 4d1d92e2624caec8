"""Memory of a GPU that is not PyTorch's, as PyTorch takes it without a copy."""


class GpuMemory:
    """Bytes from an address on; they stay while a tensor of them does.

    Args:
        address: of the first byte.
        nbytes: how many there are.
    """

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 2}
