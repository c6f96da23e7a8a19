// Found by Horovod 0.28.1, which includes XLA's builder from where TensorFlow had it up to 2.19.
//
// Later ones have it elsewhere, and absl's StatusOr in the place of XLA's own.
#ifndef HVD_SPARSE_FORWARDED_XLA_BUILDER_H_
#define HVD_SPARSE_FORWARDED_XLA_BUILDER_H_

#include "absl/status/statusor.h"
#include "tensorflow/compiler/xla/hlo/builder/xla_builder.h"

namespace xla {
template <class T>
using StatusOr = ::absl::StatusOr<T>;
}  // namespace xla

#endif  // HVD_SPARSE_FORWARDED_XLA_BUILDER_H_
