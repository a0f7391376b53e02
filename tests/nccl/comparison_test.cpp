// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The comparison of asynchronous calls, with descriptions that a test writes in place of NCCL.
#include <doctest/doctest.h>

#include "distx/nccl/detail/comparison.hpp"

using distx::calls::Fingerprint;
using distx::nccl::detail::CallRecord;
using distx::nccl::detail::Comparison;

namespace {

Fingerprint sum_of(std::uint64_t count) {
  Fingerprint call;
  call.count = count;
  call.element_bytes = 4;
  call.kind = distx::calls::CollectiveKind::all_reduce;
  return call;
}

}  // namespace

TEST_CASE("a comparison ends once the descriptions of all ranks have arrived and are equal") {
  Comparison comparison;
  CallRecord* const records = comparison.open(sum_of(5), {0, 3, "nccl"});
  records[2] = CallRecord(sum_of(5));
  CHECK(!comparison.difference(false));
  CHECK(comparison.is_open());
  records[1] = CallRecord(sum_of(5));
  CHECK(!comparison.difference(false));
  CHECK(!comparison.is_open());
  CHECK(!comparison.difference(true));
}

TEST_CASE("a comparison reports a call that differs before the call is complete") {
  Comparison comparison;
  CallRecord* const records = comparison.open(sum_of(5), {0, 3, "nccl"});
  records[2] = CallRecord(sum_of(6));
  const auto found = comparison.difference(false);
  REQUIRE(found);
  CHECK(found->find("rank 2") != std::string::npos);
  CHECK(found->find('6') != std::string::npos);
}

TEST_CASE("once a call is complete, a description that has not arrived is a difference") {
  Comparison comparison;
  CallRecord* const records = comparison.open(sum_of(5), {1, 3, "nccl"});
  records[0] = CallRecord(sum_of(5));
  CHECK(!comparison.difference(false));
  const auto found = comparison.difference(true);
  REQUIRE(found);
  CHECK(*found == "rank 2 makes another call than this rank");
}

TEST_CASE("a message whose sender has not sent its description differs once it is complete") {
  Comparison comparison;
  static_cast<void>(comparison.open_received(sum_of(5), 2));
  CHECK(!comparison.difference(false));
  CHECK(comparison.difference(true) == "rank 2 makes another call than this rank");
}
