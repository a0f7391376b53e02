// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of comm/ in the compiled part of the library. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/serial.hpp"
#include "distx/comm/threads.hpp"

namespace distx {

DISTX_COMPILED template class AnyCommunicator<Host>;

}  // namespace distx

namespace distx::detail {

using SharedMemoryState = CommunicatorState<shared_memory::Backend>;

DISTX_COMPILED template void shared_memory::Backend::execute(const AllReduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const Reduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const Broadcast<AnyElement>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const AllGather<AnyElement>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const ReduceScatter<AnyElement, AnyOp>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const AllToAll<AnyElement>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const Gather<AnyElement>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const Scatter<AnyElement>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const Send<AnyElement>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const Receive<AnyElement>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const SendReceive<AnyElement>&);
DISTX_COMPILED template void shared_memory::Backend::execute(const Barrier<Host>&);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const AllReduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const Reduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const Broadcast<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const AllGather<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const ReduceScatter<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const AllToAll<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const Gather<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const Scatter<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const Send<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const Receive<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const SendReceive<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> shared_memory::Backend::start(
    const std::shared_ptr<SharedMemoryState>&, const Barrier<Host>&, HostStream);

DISTX_COMPILED template class BasicCommunicator<SerialCommunicator, shared_memory::Backend>;
DISTX_COMPILED template class CommunicatorModel<SerialCommunicator>;
DISTX_COMPILED template class BasicCommunicator<ThreadCommunicator, shared_memory::Backend>;
DISTX_COMPILED template class CommunicatorModel<ThreadCommunicator>;

}  // namespace distx::detail
