# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A Conan 2 package of distx: what `cmake --install` installs. Programs find distx's own CMake package in it.

MPI, NCCL and the other vendors' libraries are not requirements: find_package(distx COMPONENTS …) finds those of the system.
"""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake
from conan.tools.files import copy, load


class Distx(ConanFile):
    name = "distx"
    description = "Distributed tensors and distributed training for C++20"
    license = "Apache-2.0 WITH LLVM-exception"
    package_type = "header-library"
    settings = "os", "compiler", "build_type", "arch"
    generators = "CMakeToolchain"
    exports_sources = "CMakeLists.txt", "LICENSE", "meson.build", "cmake/*", "include/*", "tools/*"
    no_copy_source = True

    def set_version(self):
        project = load(self, os.path.join(self.recipe_folder, "meson.build"))
        self.version = re.search(r"^  version: '(.*)'", project, re.MULTILINE).group(1)

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "distx")]
        self.cpp_info.libdirs = []
