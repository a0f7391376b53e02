// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of shm/ in the compiled part of the library. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/any_communicator.hpp"
#include "distx/shm/communicator.hpp"

namespace distx {

DISTX_COMPILED template ShmCommunicator::ShmCommunicator(AnyConnector&, Timeout);

}  // namespace distx

namespace distx::detail {

using ShmBase = BasicCommunicator<ShmCommunicator, shared_memory::Backend>;
DISTX_COMPILED template void ShmBase::execute(const AllReduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void ShmBase::execute(const Reduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void ShmBase::execute(const Broadcast<AnyElement>&);
DISTX_COMPILED template void ShmBase::execute(const AllGather<AnyElement>&);
DISTX_COMPILED template void ShmBase::execute(const ReduceScatter<AnyElement, AnyOp>&);
DISTX_COMPILED template void ShmBase::execute(const AllToAll<AnyElement>&);
DISTX_COMPILED template void ShmBase::execute(const Gather<AnyElement>&);
DISTX_COMPILED template void ShmBase::execute(const Scatter<AnyElement>&);
DISTX_COMPILED template void ShmBase::execute(const Send<AnyElement>&);
DISTX_COMPILED template void ShmBase::execute(const Receive<AnyElement>&);
DISTX_COMPILED template void ShmBase::execute(const SendReceive<AnyElement>&);
DISTX_COMPILED template void ShmBase::execute(const Barrier<Host>&);
DISTX_COMPILED template Pending<Host> ShmBase::start(const AllReduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const Reduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const Broadcast<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const AllGather<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const ReduceScatter<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const AllToAll<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const Gather<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const Scatter<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const Send<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const Receive<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const SendReceive<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ShmBase::start(const Barrier<Host>&, HostStream);
DISTX_COMPILED template class BasicCommunicator<ShmCommunicator, shared_memory::Backend>;
DISTX_COMPILED template class CommunicatorModel<ShmCommunicator>;

}  // namespace distx::detail
