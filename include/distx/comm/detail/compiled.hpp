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

using SerialBase = BasicCommunicator<SerialCommunicator, shared_memory::Backend>;
DISTX_COMPILED template void SerialBase::execute(const AllReduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void SerialBase::execute(const Reduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void SerialBase::execute(const Broadcast<AnyElement>&);
DISTX_COMPILED template void SerialBase::execute(const AllGather<AnyElement>&);
DISTX_COMPILED template void SerialBase::execute(const ReduceScatter<AnyElement, AnyOp>&);
DISTX_COMPILED template void SerialBase::execute(const AllToAll<AnyElement>&);
DISTX_COMPILED template void SerialBase::execute(const Gather<AnyElement>&);
DISTX_COMPILED template void SerialBase::execute(const Scatter<AnyElement>&);
DISTX_COMPILED template void SerialBase::execute(const Send<AnyElement>&);
DISTX_COMPILED template void SerialBase::execute(const Receive<AnyElement>&);
DISTX_COMPILED template void SerialBase::execute(const SendReceive<AnyElement>&);
DISTX_COMPILED template void SerialBase::execute(const Barrier<Host>&);
DISTX_COMPILED template Pending<Host> SerialBase::start(const AllReduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const Reduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const Broadcast<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const AllGather<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const ReduceScatter<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const AllToAll<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const Gather<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const Scatter<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const Send<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const Receive<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const SendReceive<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> SerialBase::start(const Barrier<Host>&, HostStream);
DISTX_COMPILED template class BasicCommunicator<SerialCommunicator, shared_memory::Backend>;
DISTX_COMPILED template class CommunicatorModel<SerialCommunicator>;

using ThreadBase = BasicCommunicator<ThreadCommunicator, shared_memory::Backend>;
DISTX_COMPILED template void ThreadBase::execute(const AllReduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void ThreadBase::execute(const Reduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void ThreadBase::execute(const Broadcast<AnyElement>&);
DISTX_COMPILED template void ThreadBase::execute(const AllGather<AnyElement>&);
DISTX_COMPILED template void ThreadBase::execute(const ReduceScatter<AnyElement, AnyOp>&);
DISTX_COMPILED template void ThreadBase::execute(const AllToAll<AnyElement>&);
DISTX_COMPILED template void ThreadBase::execute(const Gather<AnyElement>&);
DISTX_COMPILED template void ThreadBase::execute(const Scatter<AnyElement>&);
DISTX_COMPILED template void ThreadBase::execute(const Send<AnyElement>&);
DISTX_COMPILED template void ThreadBase::execute(const Receive<AnyElement>&);
DISTX_COMPILED template void ThreadBase::execute(const SendReceive<AnyElement>&);
DISTX_COMPILED template void ThreadBase::execute(const Barrier<Host>&);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const AllReduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const Reduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const Broadcast<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const AllGather<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const ReduceScatter<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const AllToAll<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const Gather<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const Scatter<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const Send<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const Receive<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const SendReceive<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> ThreadBase::start(const Barrier<Host>&, HostStream);
DISTX_COMPILED template class BasicCommunicator<ThreadCommunicator, shared_memory::Backend>;
DISTX_COMPILED template class CommunicatorModel<ThreadCommunicator>;

}  // namespace distx::detail
