// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The connectors of folders and of TCP without their launchers, which a program registers by including file.hpp or
// tcp.hpp: connect_test.cpp checks what connect() does without them.
#include "distx/comm.hpp"
#include "distx/connect/file/file_connector.hpp"
#include "distx/connect/tcp/tcp_connector.hpp"
#ifndef DISTX_COMPILED
#include "distx/connect/file/definitions.hpp"
#include "distx/connect/tcp/definitions.hpp"
#endif
