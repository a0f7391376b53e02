# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""distx as a backend of torch.distributed: every collective, on CPU tensors over the memory that the ranks of a host
share, on CUDA tensors over NCCL.

    import distx_torch
    torch.distributed.init_process_group("cpu:distx,cuda:distx")
"""
import torch.distributed

from . import _backend


def _create(options, _):
    group = getattr(options, "process_group", None)  # PyTorch 2.15 and newer
    device = getattr(group, "bound_device_id", None) if _backend.has_cuda else None
    return _backend.create(options.store, options.group_rank, options.group_size, options.timeout,
                           device.index if device else None)


torch.distributed.Backend.register_backend("distx", _create, extended_api=True,
                                           devices=["cpu", "cuda"] if _backend.has_cuda else ["cpu"])
