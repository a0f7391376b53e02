# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""distx as a backend of torch.distributed: every collective on CPU tensors, over the memory that the ranks of a host share.

    import distx_torch
    torch.distributed.init_process_group("cpu:distx")
"""
import torch.distributed

from . import _backend


def _create(options, _):
    return _backend.create(options.store, options.group_rank, options.group_size, options.timeout)


torch.distributed.Backend.register_backend("distx", _create, extended_api=True, devices=["cpu"])
