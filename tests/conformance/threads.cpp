// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/suite.hpp"
#include "conformance/threads.hpp"

DISTX_CONFORMANCE(conformance::ThreadRanks<distx::ThreadCommunicator>);
