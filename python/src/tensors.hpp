// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <distx/torch/tensor.hpp>

namespace distx_torch {

using distx::AnyElement;
using distx::Span;
using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using Counts = std::vector<std::size_t>;

#ifdef DISTX_TORCH_CUDA
inline constexpr bool has_cuda = true;
#else
inline constexpr bool has_cuda = false;
#endif

[[noreturn]] inline void refuse(const std::string& message) { C10_THROW_ERROR(ValueError, "distx: " + message); }

inline void check_dense(const at::Tensor& t) {
  if (t.defined() && t.layout() == at::kStrided && (t.is_cpu() || (has_cuda && t.is_cuda()))) return;
  refuse("the tensor is " + (t.defined() ? t.toString() + " on " + t.device().str() : std::string("undefined")) +
         (has_cuda ? "; pass a dense one in host memory or of CUDA"
                   : "; this build of distx_torch has no CUDA, pass a dense one in host memory"));
}
/// Returns the elements of a contiguous tensor; those of a type that distx does not have, as bytes.
inline Span<AnyElement> elements(const at::Tensor& t) {
  const auto size = static_cast<std::size_t>(t.numel()), bytes = static_cast<std::size_t>(t.element_size());
  for (const auto& [torch, ours] : detail::element_types)
    if (torch == t.scalar_type()) return {t.data_ptr(), size, ours, bytes};
  return {t.data_ptr(), size, distx::ElementType::bytes, bytes};
}
/// Returns the tensor, or a contiguous copy.
inline at::Tensor packed(const at::Tensor& t) {
  check_dense(t);
  return t.contiguous();
}
/// Returns the tensor if it is contiguous, else memory for its elements, which `unpack` copies.
inline at::Tensor room_for(const at::Tensor& t) {
  check_dense(t);
  return t.is_contiguous() ? t : at::empty(t.sizes(), t.options());
}
inline void unpack(const at::Tensor& from, const at::Tensor& to) {
  if (!from.is_same(to)) to.copy_(from.view(to.sizes()));
}
/// Returns the elements of all tensors one after the other, and the number of each.
inline at::Tensor joined(const Tensors& list) {
  Tensors flat;
  for (const auto& t : list) flat.push_back(packed(t).view(-1));
  return at::cat(flat);
}
inline Counts counts_of(const Tensors& list) {
  Counts counts;
  for (const auto& t : list) counts.push_back(static_cast<std::size_t>(t.numel()));
  return counts;
}
inline at::Tensor room_for(const Tensors& list) {
  std::int64_t total = 0;
  for (const auto& t : list) check_dense(t), total += t.numel();
  return at::empty({total}, list.at(0).options());
}
inline void split_into(const at::Tensor& flat, const Tensors& list) {
  std::int64_t begin = 0;
  for (const auto& t : list) {
    t.copy_(flat.narrow(0, begin, t.numel()).view(t.sizes()));
    begin += t.numel();
  }
}
inline at::Tensor only(const Tensors& list, const char* operation) {
  if (list.size() != 1)
    refuse(std::string(operation) + ": a list of " + std::to_string(list.size()) + " tensors; pass one for each rank");
  return list[0];
}
inline void check_lengths(const Tensors& outputs, const Tensors& inputs, const char* operation) {
  if (outputs.size() != inputs.size())
    refuse(std::string(operation) + ": " + std::to_string(outputs.size()) + " outputs for " +
           std::to_string(inputs.size()) + " inputs");
}
/// Checks that the tensors of a list have the type of another tensor, and a list as many as there are ranks.
inline void check_list(const Tensors& list, const at::Tensor& like, int size, const char* operation) {
  if (list.size() != static_cast<std::size_t>(size))
    refuse(std::string(operation) + ": a list of " + std::to_string(list.size()) + " tensors for " +
           std::to_string(size) + " ranks");
  for (const auto& t : list)
    if (t.scalar_type() != like.scalar_type())
      refuse(std::string(operation) + ": tensors of " + c10::toString(t.scalar_type()) + " and of " +
             c10::toString(like.scalar_type()));
}
inline void check_sizes(const Tensors& list, const at::Tensor& like, const char* operation) {
  for (const auto& t : list)
    if (t.numel() != like.numel())
      refuse(std::string(operation) + ": tensors of " + std::to_string(t.numel()) + " and of " +
             std::to_string(like.numel()) + " elements");
}

/// Returns an error of distx as the type that torch.distributed throws.
[[nodiscard]] inline std::exception_ptr translated(std::exception_ptr error, milliseconds timeout) {
  try {
    std::rethrow_exception(error);
  } catch (const distx::InvalidArgument& e) {
    return std::make_exception_ptr(c10::ValueError({__func__, __FILE__, __LINE__}, e.what()));
  } catch (const distx::TimeoutError& e) {
    return std::make_exception_ptr(c10::DistBackendError(
        {__func__, __FILE__, __LINE__},
        e.what() + std::string(" (the group's timeout is ") + std::to_string(timeout.count()) + " ms)"));
  } catch (const distx::Error& e) {
    return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, e.what()));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace distx_torch
