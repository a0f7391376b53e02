// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/parallel/hooks/quantized_blocks.hpp>
#include <distx/training.hpp>

#include <type_traits>

namespace {

struct OtherSpace {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "other";
  static constexpr bool host_accessible = true;
};

struct Gpu : OtherSpace {
  static constexpr bool host_accessible = false;
};

using distx::Host;
using distx::On;
using distx::ZeRO;
using distx::detail::CompatiblePolicies;

static_assert(CompatiblePolicies<>);
static_assert(CompatiblePolicies<ZeRO<0>>);
static_assert(CompatiblePolicies<ZeRO<0>, On<Host>>);
static_assert(CompatiblePolicies<On<OtherSpace>, ZeRO<0>>);
static_assert(CompatiblePolicies<ZeRO<1>> && CompatiblePolicies<ZeRO<3>> && CompatiblePolicies<ZeRO<distx::Dynamic>>);
static_assert(!CompatiblePolicies<ZeRO<-2>>);
static_assert(!CompatiblePolicies<ZeRO<4>>);
static_assert(!CompatiblePolicies<ZeRO<0>, ZeRO<0>>);
static_assert(!CompatiblePolicies<ZeRO<0>, On<Host>, ZeRO<0>>);
static_assert(!CompatiblePolicies<On<Host>, On<OtherSpace>>);
static_assert(!CompatiblePolicies<ZeRO<0>, int>);
using distx::Accumulate, distx::Hybrid, distx::Local, distx::Precision, distx::Sharded;
static_assert(CompatiblePolicies<Hybrid, Accumulate<Sharded>, Precision<float>, ZeRO<3>, On<Host>>);
static_assert(CompatiblePolicies<Accumulate<Local>, ZeRO<1>> && CompatiblePolicies<Accumulate<Local>>);
static_assert(!CompatiblePolicies<Accumulate<Local>, ZeRO<2>>);
static_assert(!CompatiblePolicies<Accumulate<Local>, ZeRO<1>, Accumulate<Local>>);
static_assert(!CompatiblePolicies<Accumulate<Local>, Accumulate<Sharded>>);
static_assert(!CompatiblePolicies<Precision<float>, Precision<distx::bfloat16>>);
static_assert(!CompatiblePolicies<Hybrid, ZeRO<1>, Hybrid> && !CompatiblePolicies<Hybrid>);
using distx::Compress;
struct Hook {
  static std::size_t state_size(const distx::hooks::BucketShape&) { return 0; }
  static void reduce(const distx::hooks::GradientBucket&) {}
};
static_assert(CompatiblePolicies<Compress<distx::bfloat16>, Hybrid, ZeRO<1>, Accumulate<Local>>);
static_assert(CompatiblePolicies<Compress<Hook>, ZeRO<3>, Accumulate<Sharded>, On<Host>>);
static_assert(!CompatiblePolicies<Compress<Hook>, Compress<distx::bfloat16>>);
static_assert(!CompatiblePolicies<Compress<Hook>, Hybrid, ZeRO<1>> && !CompatiblePolicies<Compress<Hook>, On<Gpu>>);
static_assert(CompatiblePolicies<Compress<distx::bfloat16>, On<Gpu>>);
static_assert(!CompatiblePolicies<Compress<distx::bfloat16>, Precision<float>>);
static_assert(!CompatiblePolicies<Compress<Hook>, distx::Reproducible<8>>);
using Blocks = distx::hooks::QuantizedBlocks<>;
static_assert(CompatiblePolicies<Compress<float, Blocks>, ZeRO<3>, Accumulate<Sharded>, Hybrid, On<Host>>);
static_assert(CompatiblePolicies<Compress<Hook, Blocks>, ZeRO<distx::Dynamic>, distx::Replicate>);
static_assert(CompatiblePolicies<Compress<distx::bfloat16, Blocks>, ZeRO<3>, Hybrid>);
static_assert(!CompatiblePolicies<Compress<float, Blocks>, ZeRO<2>> && !CompatiblePolicies<Compress<float, Blocks>>);
static_assert(!CompatiblePolicies<Compress<float, Hook>, ZeRO<3>> && !CompatiblePolicies<Compress<float, float>>);
static_assert(!CompatiblePolicies<Compress<float, Blocks>, ZeRO<3>, On<Gpu>>);
static_assert(!CompatiblePolicies<Compress<float, Blocks>, ZeRO<3>, Precision<float>>);
static_assert(!CompatiblePolicies<Compress<float, Blocks>, ZeRO<3>, distx::Reproducible<8>>);
using distx::Reproducible;
static_assert(CompatiblePolicies<Reproducible<8>, ZeRO<3>, Precision<float>, distx::Replicate, On<Host>>);
static_assert(!CompatiblePolicies<Reproducible<8>, Reproducible<8>>);
static_assert(!CompatiblePolicies<Reproducible<8>, Accumulate<Local>>);
static_assert(!CompatiblePolicies<Reproducible<8>, Hybrid, ZeRO<1>>);

static_assert(std::is_same_v<distx::detail::space_of_policies<>, Host>);
static_assert(std::is_same_v<distx::detail::space_of_policies<ZeRO<0>>, Host>);
static_assert(std::is_same_v<distx::detail::space_of_policies<ZeRO<0>, On<OtherSpace>>, OtherSpace>);
static_assert(std::is_same_v<distx::DataParallel<On<OtherSpace>>::space, OtherSpace>);

static_assert(std::is_move_constructible_v<distx::DataParallel<>>);
static_assert(!std::is_copy_constructible_v<distx::DataParallel<>>);

// What may stand for a parameter's memory, and what may not.
static_assert(distx::detail::ParameterArray<std::vector<float>&>);
static_assert(distx::detail::ParameterArray<std::array<double, 3>&>);
static_assert(distx::detail::ParameterArray<float (&)[3]>);
static_assert(distx::detail::ParameterArray<std::span<float>>);
static_assert(distx::detail::ParameterArray<distx::Span<distx::bfloat16, OtherSpace>>);
static_assert(distx::detail::ParameterArray<distx::Buffer<float>&>);
static_assert(!distx::detail::ParameterArray<std::vector<float>>);  // a temporary
static_assert(!distx::detail::ParameterArray<const std::vector<float>&>);
static_assert(!distx::detail::ParameterArray<std::vector<int>&>);
static_assert(!distx::detail::ParameterArray<float&>);

/// A matrix that may be a part of another one, in the manner of Eigen.
struct Matrix {
  float* elements;
  long rows, columns, stride, inner = 1;
  float* data() { return elements; }
  long size() const { return rows * columns; }
  long innerStride() const { return inner; }
  long outerStride() const { return stride; }
  long innerSize() const { return rows; }
  long outerSize() const { return columns; }
};
static_assert(distx::detail::ParameterArray<Matrix&>);

}  // namespace

TEST_CASE("a matrix with gaps is an error, a contiguous one is accepted") {
  std::vector<float> memory(24);
  Matrix whole{memory.data(), 3, 4, 3};
  Matrix gradient{memory.data() + 12, 3, 4, 3};
  const auto parameter = distx::ref("w", whole, gradient);
  CHECK(parameter.weight.data() == memory.data());
  CHECK(parameter.weight.size() == 12);
  CHECK(parameter.gradient.data() == memory.data() + 12);
  Matrix block{memory.data(), 2, 4, 3};
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", block, gradient)), doctest::Contains("without gaps"),
                       distx::InvalidArgument);
  Matrix row{memory.data(), 1, 4, 1, 3};
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", row, gradient)), doctest::Contains("without gaps"),
                       distx::InvalidArgument);
  Matrix column{memory.data(), 3, 1, 99};
  CHECK(distx::ref("w", column, column).weight.size() == 3);
}
