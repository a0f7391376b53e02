# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

here = os.path.dirname(os.path.abspath(__file__))

setup(
    name="distx-torch",
    version="0.1.0",
    description="distx as a backend of torch.distributed",
    packages=["distx_torch"],
    ext_modules=[
        CppExtension(
            "distx_torch._backend",
            ["src/backend.cpp"],
            include_dirs=[os.path.join(os.path.dirname(here), "include")],
            extra_compile_args=["-std=c++20", "-O2", "-g0"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
