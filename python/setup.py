# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import os

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension

here = os.path.dirname(os.path.abspath(__file__))


def cuda():
    """Returns the build options for CUDA tensors: the libnccl and libcudart that PyTorch has loaded, and their headers.
    Prints what is absent."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps}
    loaded = {os.path.basename(path).split(".so")[0]: path for path in paths if ".so" in path}
    headers, libraries = [], []
    for library, header in (("libnccl", "nccl.h"), ("libcudart", "crt/host_defines.h")):
        path = loaded.get(library, "")
        beside = os.path.join(os.path.dirname(os.path.dirname(path)), "include")
        folders = [beside, os.path.join(CUDA_HOME or "/usr/local/cuda", "include"), "/usr/include"]
        found = [folder for folder in folders if os.path.exists(os.path.join(folder, header))]
        if not torch.version.cuda or not path or not found:
            print("distx_torch: without CUDA tensors: " + (
                "PyTorch was built without CUDA" if not torch.version.cuda else
                f"PyTorch has not loaded {library}" if not path else f"{header} is in none of {', '.join(folders)}"))
            return {}
        headers.append(found[0])
        libraries.append(path)
    return {"include_dirs": headers, "libraries": ["c10_cuda"], "define_macros": [("DISTX_TORCH_CUDA", None)],
            "extra_link_args": libraries}


options = cuda()
setup(
    name="distx-torch",
    version="0.1.0",
    description="distx as a backend of torch.distributed",
    packages=["distx_torch"],
    ext_modules=[
        CppExtension(
            "distx_torch._backend",
            ["src/backend.cpp"],
            include_dirs=[os.path.join(os.path.dirname(here), "include")] + options.pop("include_dirs", []),
            extra_compile_args=["-std=c++20", "-O2", "-g0"],
            **options,
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
