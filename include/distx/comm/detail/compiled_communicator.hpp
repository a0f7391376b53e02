// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// For the headers that list the templates of the compiled part of the library.
#include "distx/comm/any_communicator.hpp"

/// One call of a communicator, as its erased interface makes it. DISTX_COMPILED is `extern` where it is declared, and
/// nothing where it is defined.
#define DISTX_COMPILED_CALL(C, B, ...)                                               \
  DISTX_COMPILED template void BasicCommunicator<C, B>::execute(const __VA_ARGS__&); \
  DISTX_COMPILED template Pending<Host> BasicCommunicator<C, B>::start(const __VA_ARGS__&, HostStream)

/// A communicator of host memory, all its erased calls, and its model in an AnyCommunicator; in namespace
/// distx::detail.
/// @param B  its backend
#define DISTX_COMPILED_COMMUNICATOR(C, B)                      \
  DISTX_COMPILED_CALL(C, B, AllReduce<AnyElement, AnyOp>);     \
  DISTX_COMPILED_CALL(C, B, Reduce<AnyElement, AnyOp>);        \
  DISTX_COMPILED_CALL(C, B, Broadcast<AnyElement>);            \
  DISTX_COMPILED_CALL(C, B, AllGather<AnyElement>);            \
  DISTX_COMPILED_CALL(C, B, ReduceScatter<AnyElement, AnyOp>); \
  DISTX_COMPILED_CALL(C, B, AllToAll<AnyElement>);             \
  DISTX_COMPILED_CALL(C, B, Gather<AnyElement>);               \
  DISTX_COMPILED_CALL(C, B, Scatter<AnyElement>);              \
  DISTX_COMPILED_CALL(C, B, Send<AnyElement>);                 \
  DISTX_COMPILED_CALL(C, B, Receive<AnyElement>);              \
  DISTX_COMPILED_CALL(C, B, SendReceive<AnyElement>);          \
  DISTX_COMPILED_CALL(C, B, Barrier<Host>);                    \
  DISTX_COMPILED template class BasicCommunicator<C, B>;       \
  DISTX_COMPILED template class CommunicatorModel<C>
