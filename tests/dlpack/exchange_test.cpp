// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "distx/dlpack.hpp"
#include "distx/tensor/tensor_ref.hpp"
#include "message_thrown.hpp"

namespace dlpack = distx::dlpack;

namespace {

// The structs of a `dlpack.h`, whose enumerations are further types.
namespace foreign {

enum DLDeviceType : std::int32_t { kDLCPU = 1 };
struct Device {
  DLDeviceType device_type;
  std::int32_t device_id;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  dlpack::DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct Version {
  std::uint32_t major, minor;
};
struct Managed {
  Version version;
  void* manager_ctx;
  void (*deleter)(Managed*);
  std::uint64_t flags;
  Tensor dl_tensor;
};

}  // namespace foreign

/// Memory that host code cannot access.
struct Gpu {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "cuda";
  static constexpr bool host_accessible = false;
};

/// A tensor of 2 x 3 floats of another library, which counts the calls of its deleter.
template <class M = dlpack::DLManagedTensorVersioned>
struct Foreign {
  std::array<float, 8> values{0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<std::int64_t> shape{2, 3}, strides{3, 1};
  int deleted = 0;
  M managed{};

  Foreign() {
    auto& tensor = managed.dl_tensor;
    tensor.data = values.data();
    tensor.ndim = 2;
    tensor.dtype = {2, 32, 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();
    managed.manager_ctx = this;
    managed.deleter = [](M* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
  }
  Foreign(Foreign&&) = delete;
};

/// The words with which a changed tensor is refused, which must call the deleter once.
template <class T = distx::AnyElement, class Space = distx::Host, class Change>
std::string refusal(Change change) {
  Foreign<> foreign;
  change(foreign);
  const auto words = test::message_thrown<distx::InvalidArgument>(
      [&] { std::ignore = dlpack::from_dlpack<T, Space>(&foreign.managed); });
  CHECK(foreign.deleted == 1);
  return words;
}

template <class Change>
std::string refusal_of_tensor(Change change) {
  return refusal([&](Foreign<>& foreign) { change(foreign.managed.dl_tensor); });
}

constexpr std::array<std::size_t, 2> two_by_three{2, 3};

bool contains(const std::string& words, std::string_view part) { return words.find(part) != std::string::npos; }

}  // namespace

TEST_CASE_TEMPLATE("from_dlpack refers to the memory of another library, and frees it once", M,
                   dlpack::DLManagedTensorVersioned, dlpack::DLManagedTensor, foreign::Managed) {
  Foreign<M> foreign;
  if constexpr (std::same_as<M, foreign::Managed>) {
    foreign.managed.version = {1, 7};
    foreign.managed.dl_tensor.device.device_type = foreign::kDLCPU;
  }
  {
    auto x = dlpack::from_dlpack<float>(&foreign.managed);
    CHECK(x.span().data() == foreign.values.data());
    CHECK(x.span().size() == 6);
    CHECK(x.shape() == std::vector<std::size_t>{2, 3});
    CHECK(x.device() == 0);
    const auto copy = x;
    const auto moved = std::move(x);
    CHECK(x.span().empty());  // NOLINT
    CHECK(x.shape().empty());
    CHECK(moved.span().data() == foreign.values.data());
    CHECK(copy.span().data() == foreign.values.data());
    x = moved;
    x = {};
    CHECK(foreign.deleted == 0);
  }
  CHECK(foreign.deleted == 1);
}

static_assert(sizeof(void*) != 8 || (sizeof(dlpack::DLTensor) == 48 && sizeof(dlpack::DLManagedTensor) == 64 &&
                                     sizeof(dlpack::DLManagedTensorVersioned) == 80),
              "the layouts of DLPack's structs");

TEST_CASE("the owner of an imported tensor keeps its memory") {
  Foreign<> foreign;
  auto owner = dlpack::from_dlpack(&foreign.managed).owner();
  CHECK(foreign.deleted == 0);
  owner.reset();
  CHECK(foreign.deleted == 1);
}

TEST_CASE("from_dlpack takes a tensor without a deleter, with an offset, with any stride of an extent of 1") {
  Foreign<> foreign;
  foreign.managed.deleter = nullptr;
  foreign.managed.dl_tensor.byte_offset = 2 * sizeof(float);
  foreign.shape = {1, 6};
  foreign.strides = {77, 1};
  foreign.managed.dl_tensor.shape = foreign.shape.data();
  foreign.managed.dl_tensor.strides = foreign.strides.data();
  const auto x = dlpack::from_dlpack<const float>(&foreign.managed);
  CHECK(x.span().data() == foreign.values.data() + 2);
  CHECK(x.span()[0] == 2);

  foreign.managed.dl_tensor.strides = nullptr;  // as libraries write them before version 1.2
  CHECK(dlpack::from_dlpack<float>(&foreign.managed).shape() == std::vector<std::size_t>{1, 6});
}

TEST_CASE("from_dlpack takes scalars and tensors without elements") {
  Foreign<> scalar;
  scalar.managed.dl_tensor.ndim = 0;
  scalar.managed.dl_tensor.shape = scalar.managed.dl_tensor.strides = nullptr;
  const auto x = dlpack::from_dlpack<float>(&scalar.managed);
  CHECK(x.span().size() == 1);
  CHECK(x.shape().empty());

  Foreign<> none;
  none.shape = {0, 3};
  none.managed.dl_tensor.shape = none.shape.data();
  none.managed.dl_tensor.data = nullptr;
  none.managed.dl_tensor.byte_offset = 8;
  const auto y = dlpack::from_dlpack(&none.managed);
  CHECK(y.span().empty());
  CHECK(y.span().type() == distx::ElementType::f32);
  CHECK(y.shape() == std::vector<std::size_t>{0, 3});
}

TEST_CASE("from_dlpack has an element type for each of DLPack's that distx has, and bool is uint8") {
  using enum distx::ElementType;
  const std::tuple<int, int, distx::ElementType> types[] = {
      {0, 8, i8},   {0, 16, i16},  {0, 32, i32}, {0, 64, i64},    {1, 8, u8},
      {1, 16, u16}, {1, 32, u32},  {1, 64, u64}, {2, 16, f16},    {2, 32, f32},
      {2, 64, f64}, {4, 16, bf16}, {6, 8, u8},   {10, 8, f8e4m3}, {12, 8, f8e5m2}};
  for (const auto& [code, bits, type] : types) {
    CAPTURE(code);
    CAPTURE(bits);
    Foreign<> foreign;
    foreign.managed.dl_tensor.dtype = {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
    foreign.shape = {1, 3};
    const auto x = dlpack::from_dlpack(&foreign.managed);
    CHECK(x.span().type() == type);
    CHECK(x.span().element_bytes() == static_cast<std::size_t>(bits / 8));
    CHECK(x.span().data() == foreign.values.data());
  }
}

TEST_CASE("from_dlpack refuses element types that distx does not have, and names them") {
  const auto refused = [](std::uint8_t code, std::uint8_t bits, std::uint16_t lanes) {
    return refusal_of_tensor([&](dlpack::DLTensor& tensor) { tensor.dtype = {code, bits, lanes}; });
  };
  CHECK(refused(5, 64, 1) ==
        "distx: from_dlpack: distx has no elements of DLPack's type code 5 (complex), 64 bits and 1 lanes; "
        "convert the tensor");
  CHECK(contains(refused(2, 128, 1), "type code 2 (float), 128 bits"));
  CHECK(contains(refused(17, 4, 1), "type code 17 (another), 4 bits"));
  CHECK(contains(refused(255, 8, 1), "type code 255 (another)"));
  CHECK(contains(refused(2, 32, 4), "32 bits and 4 lanes"));
  CHECK(contains(refused(2, 32, 0), "32 bits and 0 lanes"));
  CHECK(contains(refused(6, 8, 2), "type code 6 (bool), 8 bits and 2 lanes"));
}

TEST_CASE("from_dlpack refuses another element type than the one that is named") {
  CHECK(refusal<double>([](Foreign<>&) {}) == "distx: from_dlpack: the tensor has elements of float32, not of float64");
  CHECK(contains(refusal<const std::int32_t>([](Foreign<>&) {}), "not of int32"));
}

TEST_CASE("from_dlpack refuses strides that are not those of a row-major tensor without gaps") {
  const auto refused = [](std::vector<std::int64_t> strides) {
    return refusal([&](Foreign<>& foreign) {
      foreign.strides = strides;
      foreign.managed.dl_tensor.strides = foreign.strides.data();
    });
  };
  CHECK(refused({1, 2}) ==
        "distx: from_dlpack: the tensor of shape (2, 3) has strides (1, 2) instead of (3, 1); pass a contiguous copy");
  CHECK(contains(refused({4, 1}), "strides (4, 1)"));
  CHECK(contains(refused({6, 2}), "strides (6, 2)"));
  CHECK(contains(refused({0, 1}), "strides (0, 1)"));
  CHECK(contains(refused({-3, 1}), "strides (-3, 1)"));
}

TEST_CASE("from_dlpack refuses negative extents, sizes that overflow, and shapes that are absent") {
  const auto refused = [](std::vector<std::int64_t> shape) {
    return refusal([&](Foreign<>& foreign) {
      foreign.shape = shape;
      foreign.managed.dl_tensor.shape = foreign.shape.data();
      foreign.managed.dl_tensor.ndim = static_cast<std::int32_t>(shape.size());
      foreign.managed.dl_tensor.strides = nullptr;
    });
  };
  CHECK(refused({2, -3}) == "distx: from_dlpack: invalid shape (2, -3): an extent is negative, or the size overflows");
  const std::int64_t huge = std::int64_t{1} << 61;  // floats: one byte more than a pointer difference can count
  CHECK(contains(refused({huge}), "overflows"));
  CHECK(contains(refused({1, huge, 1}), "overflows"));
  CHECK(contains(refused({huge, huge}), "overflows"));
  CHECK(contains(refused({std::int64_t{1} << 31, std::int64_t{1} << 31}), "overflows"));
  CHECK(contains(refused({-1, 0}), "is negative"));
  CHECK(contains(refusal_of_tensor([](dlpack::DLTensor& tensor) { tensor.ndim = -1; }), "ndim -1 is negative"));
  CHECK(contains(refusal_of_tensor([](dlpack::DLTensor& tensor) { tensor.shape = nullptr; }), "it is at address 0"));
}

TEST_CASE("from_dlpack refuses elements without an address, or with one that is not aligned") {
  for (const std::uint64_t offset : {0U, 8U}) {
    CHECK(contains(refusal_of_tensor([&](dlpack::DLTensor& tensor) {
                     tensor.data = nullptr;
                     tensor.byte_offset = offset;
                   }),
                   "address is 0"));
  }
  CHECK(contains(refusal_of_tensor([](dlpack::DLTensor& tensor) { tensor.byte_offset = 2; }),
                 "not a multiple of an element's 4 bytes"));
}

TEST_CASE("from_dlpack takes the memory of the named space only") {
  const auto refused = [](std::int32_t type) {
    return refusal_of_tensor([&](dlpack::DLTensor& tensor) { tensor.device = {type, 0}; });
  };
  CHECK(refused(2) ==
        "distx: from_dlpack: the tensor is in memory of DLPack's device type 2, not of the space 'host'; "
        "copy it there");
  CHECK(contains(refused(10), "device type 10"));
  CHECK(contains(refused(13), "device type 13"));
  CHECK(contains(refused(0), "device type 0"));
  CHECK(contains(refusal<float, Gpu>([](Foreign<>&) {}), "device type 1, not of the space 'cuda'"));

  Foreign<> pinned;
  pinned.managed.dl_tensor.device = {3, 0};
  CHECK(dlpack::from_dlpack<float>(&pinned.managed).owner() != nullptr);

  Foreign<> gpu;
  gpu.managed.dl_tensor.device = {2, 1};
  const auto x = dlpack::from_dlpack<float, Gpu>(&gpu.managed);
  CHECK(x.span().data() == gpu.values.data());
  CHECK(x.device() == 1);
}

TEST_CASE("from_dlpack gives a read-only tensor as const elements only") {
  const auto read_only = [](Foreign<>& foreign) { foreign.managed.flags = 1; };
  CHECK(refusal<float>(read_only) == "distx: from_dlpack: the tensor is read-only; name a const element type");
  CHECK(contains(refusal<distx::AnyElement>(read_only), "read-only"));
  for (const std::uint64_t flags : {1U, 3U}) {
    Foreign<> foreign;
    foreign.managed.flags = flags;
    const auto x = dlpack::from_dlpack<const distx::AnyElement>(&foreign.managed);
    static_assert(std::same_as<decltype(x.span()), distx::Span<const distx::AnyElement>>);
    CHECK(x.span().data() == foreign.values.data());
  }
  Foreign<> copied;  // for its consumer, which may write
  copied.managed.flags = 2;
  CHECK(dlpack::from_dlpack<float>(&copied.managed).owner() != nullptr);
}

TEST_CASE("from_dlpack refuses another major version, of which it reads the deleter only") {
  CHECK(refusal([](Foreign<>& foreign) {
          foreign.managed.version = {2, 0};
          foreign.managed.dl_tensor = {};
        }) == "distx: from_dlpack: the tensor has version 2 of DLPack; ask for version 1");
  dlpack::DLManagedTensor* const none = nullptr;
  CHECK(contains(test::message_thrown<distx::InvalidArgument>([&] { std::ignore = dlpack::from_dlpack(none); }),
                 "the managed tensor is null"));
}

TEST_CASE_TEMPLATE("to_dlpack describes distx's memory and keeps its owner until the deleter is called", M,
                   dlpack::DLManagedTensorVersioned, dlpack::DLManagedTensor, foreign::Managed) {
  auto owner = std::make_shared<distx::Tensor<float, 2>>(two_by_three);
  const std::weak_ptr<const void> alive = owner;
  auto managed = dlpack::to_dlpack<M>(owner->values(), owner->extents(), owner);
  const auto& tensor = managed->dl_tensor;
  CHECK(tensor.data == owner->values().data());
  CHECK(tensor.device.device_type == 1);
  CHECK(tensor.ndim == 2);
  CHECK(tensor.dtype == dlpack::DLDataType{2, 32, 1});
  CHECK(std::vector(tensor.shape, tensor.shape + 2) == std::vector<std::int64_t>{2, 3});
  CHECK(std::vector(tensor.strides, tensor.strides + 2) == std::vector<std::int64_t>{3, 1});
  CHECK(tensor.byte_offset == 0);
  if constexpr (dlpack::VersionedTensor<M>) {
    CHECK(managed->version.major == 1);
    CHECK(managed->flags == 0);
  }
  owner.reset();
  CHECK_FALSE(alive.expired());
  SUBCASE("by a consumer") {
    M* const consumed = managed.release();
    consumed->deleter(consumed);
  }
  SUBCASE("by nobody but the result") { managed.reset(); }
  CHECK(alive.expired());
}

TEST_CASE("a tensor that returns from DLPack is the same memory, and read-only if its elements are const") {
  const auto values = std::make_shared<std::vector<std::int16_t>>(std::vector<std::int16_t>{1, 2, 3, 4, 5, 6});
  {
    const auto x = dlpack::from_dlpack<std::int16_t>(
        dlpack::to_dlpack(distx::Span(values->data(), 6), two_by_three, values).release());
    CHECK(x.span().data() == values->data());
    // and once more, from what was imported
    const distx::Span<const distx::AnyElement> any(x.span());
    auto managed = dlpack::to_dlpack(any, x.shape(), x.owner());
    CHECK(managed->flags == 1);
    const auto y = dlpack::from_dlpack<const std::int16_t>(managed.release());
    CHECK(y.span().data() == values->data());
    CHECK(y.shape() == x.shape());
    CHECK(values.use_count() == 2);
  }
  CHECK(values.use_count() == 1);
}

TEST_CASE("to_dlpack gives scalars, and tensors without elements, whose address is 0") {
  float number = 3;
  const auto scalar = dlpack::from_dlpack<float>(dlpack::to_dlpack(distx::Span(&number, 1), {}, nullptr).release());
  CHECK(scalar.span().data() == &number);
  CHECK(scalar.shape().empty());

  const std::array<std::size_t, 2> none{0, 3};
  auto managed = dlpack::to_dlpack(distx::Span(&number, 0), none, nullptr);
  CHECK(managed->dl_tensor.data == nullptr);
  CHECK(dlpack::from_dlpack<float>(managed.release()).shape() == std::vector<std::size_t>{0, 3});
}

TEST_CASE("to_dlpack gives memory of a GPU with its number") {
  float number = 3;
  const distx::Span<float, Gpu> elements(&number, 1);
  const auto managed = dlpack::to_dlpack(elements, {}, nullptr, 2);
  CHECK(managed->dl_tensor.device.device_type == 2);
  CHECK(managed->dl_tensor.device.device_id == 2);
  CHECK(test::message_thrown<distx::InvalidArgument>([&] { std::ignore = dlpack::to_dlpack(elements, {}, nullptr); }) ==
        "distx: to_dlpack: pass the number of the GPU whose memory it is");
}

TEST_CASE("to_dlpack refuses a shape of another number of elements, one that overflows, and elements of type bytes") {
  const auto owner = std::make_shared<std::vector<float>>(6);
  const auto refused = [&](auto span, std::vector<std::size_t> shape) {
    return test::message_thrown<distx::InvalidArgument>([&] { std::ignore = dlpack::to_dlpack(span, shape, owner); });
  };
  const distx::Span<float> six(*owner);
  CHECK(refused(six, {2, 4}) == "distx: to_dlpack: a tensor of shape (2, 4) has 8 elements, but the span has 6");
  CHECK(contains(refused(six, {}), "shape () has 1 elements"));
  CHECK(contains(refused(distx::Span<float>(), {std::size_t{1} << 32, std::size_t{1} << 32}), "overflows"));
  CHECK(contains(refused(six, {SIZE_MAX, 6}), "invalid shape (-1, 6)"));
  const distx::Span<distx::AnyElement> bytes(owner->data(), 24, distx::ElementType::bytes, 1);
  CHECK(contains(refused(bytes, {24}), "no elements of type bytes"));
  CHECK(owner.use_count() == 1);
}
